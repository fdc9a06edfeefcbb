"""Least privilege: the role of docs/postgres.md, and nothing more, dumps and follows a table."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dblog.errors import PreconditionFailed
from dblog.sources.postgres.preflight import admin_sql
from dblog.sources.postgres.source import Postgres
from dblog.spark.options import read_options
from tests.engine.conftest import MakeQuery, check, on_postgres
from tests.families import OnPostgres

pytestmark = [pytest.mark.server, on_postgres]

PAGE = Path(__file__).parents[2] / "docs/postgres.md"
PUBLICATION = "orders_cdc"
RIGHTS = """
select 'role', key from pg_roles r, jsonb_each_text(to_jsonb(r)) where rolname = %(role)s and value = 'true'
union select nspname, privilege_type from pg_namespace, aclexplode(nspacl) where grantee = %(role)s::regrole
union select relname, privilege_type from pg_class, aclexplode(relacl) where grantee = %(role)s::regrole
order by 1, 2
"""


@dataclass(frozen=True)
class Role:
    """A role that a script is about to create, on a database that gives nothing to everybody but a login."""

    database: OnPostgres
    name: str
    password: str

    @property
    def url(self) -> str:
        return self.database.server.url(self.database.name, self.name, self.password)

    @property
    def documented(self) -> str:
        """The script of the page, with the names of the test."""
        (script,) = re.findall(r"```sql\n(CREATE ROLE.*?)```", PAGE.read_text(), re.DOTALL)
        return re.sub(r"\bcdc\b", self.name, script).replace("'...'", f"'{self.password}'")

    @property
    def printed(self) -> str:
        """The script that `dblog check --admin-sql` prints, which begins with a role that can log in."""
        return self.script()

    def script(self, **options: str) -> str:
        given = {"url": self.database.url, "table": "public.orders", "publication": PUBLICATION, **options}
        source = read_options(given).source
        assert isinstance(source, Postgres)
        script = admin_sql(source.setup(), self.name)
        return f"create role {self.name} login password '{self.password}'; {script}"


@pytest.fixture
def role(database: OnPostgres) -> Iterator[Role]:
    database.execute("create table orders (id int primary key, n int)")
    database.execute("insert into orders select i, 0 from generate_series(1, 50) i")
    database.execute(
        f"revoke all on schema public from public; revoke temporary on database {database.name} from public"
    )
    role = Role(database, f"cdc_{secrets.token_hex(4)}", secrets.token_hex(8))
    yield role
    database.execute(f"drop owned by {role.name}; drop role {role.name}")


@pytest.mark.parametrize("script", ["documented", "printed"])
def test_a_role_with_the_documented_rights_alone_dumps_and_follows(
    database: OnPostgres, role: Role, query: MakeQuery, script: str
) -> None:
    database.execute(getattr(role, script))
    assert database.execute(RIGHTS, parameters={"role": role.name}) == [
        ("dblog", "USAGE"),
        ("orders", "SELECT"),
        ("public", "USAGE"),
        ("role", "rolcanlogin"),
        ("role", "rolinherit"),
        ("role", "rolreplication"),
        ("watermark", "SELECT"),
        ("watermark", "UPDATE"),
    ]
    stream = query("public.orders", url=role.url, publication=PUBLICATION)
    stream.open_window()
    database.execute("update orders set n = 1 where id in (3, 44)")
    database.execute("delete from orders where id = 7")
    check(stream, database, "public.orders")
    stream.restart()
    database.execute("update orders set n = 2 where id = 3")
    check(stream, database, "public.orders")


def test_a_role_that_may_only_read_dumps_and_follows_without_writing(
    database: OnPostgres, role: Role, query: MakeQuery
) -> None:
    database.execute(role.script(watermark="none"))
    database.execute(f"alter role {role.name} set default_transaction_read_only = on")
    assert database.execute(RIGHTS, parameters={"role": role.name}) == [
        ("orders", "SELECT"),
        ("public", "USAGE"),
        ("role", "rolcanlogin"),
        ("role", "rolinherit"),
        ("role", "rolreplication"),
    ]
    stream = query("public.orders", url=role.url, publication=PUBLICATION, watermark="none")
    stream.open_window()
    database.execute("set synchronous_commit = off; update orders set n = 1 where id in (3, 44)")
    database.execute("delete from orders where id = 7")
    check(stream, database, "public.orders")
    assert not database.execute("select from pg_namespace where nspname = 'dblog'")


# What is taken out of the script, what is left of it, and what the stream says then.
LESS = {
    "replication": (" REPLICATION", "", "may not read the log (no REPLICATION)"),
    "watermark row": ("INSERT INTO dblog.watermark VALUES (1, '');", "", "'dblog.watermark' has no row"),
    "watermark usage": ("GRANT USAGE ON SCHEMA dblog TO {role};", "", ": USAGE on schema 'dblog'"),
    "watermark select": ("SELECT, UPDATE", "UPDATE", "lacks rights on 'dblog.watermark': SELECT"),
    "watermark update": ("SELECT, UPDATE", "SELECT", "lacks rights on 'dblog.watermark': UPDATE"),
    "usage": ("GRANT USAGE ON SCHEMA public TO {role};", "", ": USAGE on schema 'public'"),
    "select": ("GRANT SELECT ON public.orders TO {role};", "", "lacks rights on 'public.orders': SELECT"),
    "publication": ("CREATE PUBLICATION", "-- CREATE PUBLICATION", "publication 'orders_cdc' does not exist"),
    "published table": ("TABLE public.orders, ", "TABLE ", "'orders_cdc' does not have 'public.orders'"),
    "published watermark": (", dblog.watermark", "", "'orders_cdc' does not have 'dblog.watermark'"),
}


@pytest.mark.parametrize("right", LESS)
def test_a_role_with_less_is_told_what_it_lacks(database: OnPostgres, role: Role, query: MakeQuery, right: str) -> None:
    taken, left, said = LESS[right]
    taken = taken.format(role=role.name)
    assert role.documented.count(taken) == 1
    database.execute(role.documented.replace(taken, left))
    with pytest.raises(PreconditionFailed, match=rf"1 problem:\n- .*{re.escape(said)}\n  fix: "):
        query("public.orders", url=role.url, publication=PUBLICATION).step()
