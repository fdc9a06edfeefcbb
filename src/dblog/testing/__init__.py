"""Real servers to start in a test or a demo: PostgreSQL, MySQL, MariaDB and Kafka, each in its own folder."""
