"""MySQL and MariaDB as targets of the sink `sql`.

target      statements and definitions
types       the types of columns
rows        rows to the server, as INSERTs
load_data   rows to the server, by LOAD DATA LOCAL
"""

from dblog.sinks.sql.mysql.target import MySQLTarget

__all__ = ["MySQLTarget"]
