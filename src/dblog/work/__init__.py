"""What executors do: they read log segments, select chunks and turn both into output rows."""
