"""Source databases: one folder per family, all behind `base.Source`."""
