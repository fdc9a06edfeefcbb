"""MySQL and MariaDB as targets of the sink `sql`.

target      statements and definitions
types       the types of columns
rows        rows to the server
"""

from dblog.sinks.sql.mysql.target import MySQLTarget

__all__ = ["MySQLTarget"]
