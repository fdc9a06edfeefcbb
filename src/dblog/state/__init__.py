"""What people and pipelines tell each other: requests, settings, progress, status. Nothing here moves data."""
