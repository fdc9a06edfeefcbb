"""The Spark data source: options, output rows, the stream reader, a tuned session."""
