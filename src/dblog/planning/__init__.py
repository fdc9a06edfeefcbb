"""What the driver does between batches: it decides where each batch ends and which chunks are read."""
