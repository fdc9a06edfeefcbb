"""Everything `dblog demo` needs besides DBLog itself: a PostgreSQL of its own and something to capture from it."""
