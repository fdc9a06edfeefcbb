"""Connections to MySQL and MariaDB, and where the two differ."""
