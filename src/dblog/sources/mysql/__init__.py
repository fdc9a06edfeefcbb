"""MySQL and MariaDB: the binary log, and chunk reads over the binary protocol."""
