"""MySQL and MariaDB: the differences between the two, as data."""

from __future__ import annotations

from dataclasses import dataclass

from dblog.databases.mysql.gtid import GtidPosition, Gtids, GtidSet


@dataclass(frozen=True)
class Flavor:
    """MySQL or MariaDB."""

    name: str
    collection: str
    """How `information_schema` spells the type of a geometry that is a collection."""
    text_geometry: bool
    """Whether a table map lists character sets for geometries too."""
    fixed_binary: frozenset[str]
    """Types that the log shows as BINARY(n). Only the catalog shows which columns have them."""
    hidden: str
    """A pattern of column names that occur in the log but not in the catalog: hashes of long unique keys."""
    gtids: type[Gtids]
    time_limit: str
    """The setting that ends a select after some seconds."""
    persists: bool
    """Whether the server has SET PERSIST, which keeps a setting over a restart."""
    plain_vector: bool
    """Whether the log shows VECTOR(n) as VARBINARY(4n). If so, the column is delivered as VARBINARY(4n)."""


MYSQL = Flavor("MySQL", "geomcollection", False, frozenset(), "", GtidSet, "max_execution_time = {0}000", True, False)
MARIADB = Flavor(
    "MariaDB",
    "geometrycollection",
    True,
    frozenset({"uuid", "inet4", "inet6"}),
    r"DB_ROW_HASH_\d+",
    GtidPosition,
    "max_statement_time = {0}",
    False,
    True,
)


def flavor_of(version: str) -> Flavor:
    """The flavor of a server, from its `version()`. MariaDB's version contains its name; MySQL's does not."""
    return MARIADB if "mariadb" in version.lower() else MYSQL
