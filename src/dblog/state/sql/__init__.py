"""The state store in tables of a PostgreSQL, MySQL or MariaDB database."""
