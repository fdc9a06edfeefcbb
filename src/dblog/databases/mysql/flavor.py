"""MySQL and MariaDB: where two families of servers differ, as data."""

from __future__ import annotations

from dataclasses import dataclass

from dblog.databases.mysql.gtid import GtidPosition, Gtids, GtidSet


@dataclass(frozen=True)
class Flavor:
    """One of the two families."""

    name: str
    collection: str
    """How `information_schema` spells the type of a geometry that is a collection."""
    text_geometry: bool
    """A table map gives character sets for geometries too."""
    fixed_binary: frozenset[str]
    """Types that the log shows as BINARY(n); only the catalog tells them from it."""
    hidden: str
    """A pattern of the names of columns that the log has and the catalog does not: hashes of long unique keys."""
    gtids: type[Gtids]
    time_limit: str
    """The setting that ends a select after some seconds."""
    persists: bool
    """SET PERSIST keeps a setting over a restart."""
    plain_vector: bool
    """The log shows VECTOR(n) as VARBINARY(4n), and so do we."""


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
    """By the server's `version()`: MariaDB says its name in it, MySQL does not."""
    return MARIADB if "mariadb" in version.lower() else MYSQL
