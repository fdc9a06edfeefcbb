"""PostgreSQL as a target of the sink `sql`.

target          statements, definitions, and COPY
copy_binary     rows of Arrow as binary COPY
copy_text       values of Arrow as the text that the server reads
"""

from dblog.sinks.sql.postgres.target import PostgresTarget

__all__ = ["PostgresTarget"]
