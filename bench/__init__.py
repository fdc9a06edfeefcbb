"""`python -m bench`: DBLog on Spark against the limits of the server and against Debezium, in one interleaved run."""
