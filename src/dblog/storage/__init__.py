"""Files by path or URI: how each client reaches the storage."""
