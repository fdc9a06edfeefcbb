"""The demonstration `dblog demo`: a database server, a shop that writes to it, and the check of the result."""
