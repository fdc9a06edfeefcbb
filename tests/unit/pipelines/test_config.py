"""A pipeline's file: what it becomes, and what is said of one that is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dblog.core.schema import TableName
from dblog.core.settings import Setting, mapping, number, text
from dblog.errors import ConfigError
from dblog.pipelines import sink_kinds
from dblog.pipelines.config import Config, read_config
from dblog.sinks.base import Batch, Sink
from dblog.storage.object_storage import ObjectStorage

SOURCE = '[source]\nurl = "postgresql://cdc@db.example/shop"\ntables = ["public.*", "!public.tmp_*"]\n'
PLAIN = '[[sink]]\ntype = "plain"\n'


class PlainSink(Sink):
    """A sink with a setting of each sort."""

    settings = (
        Setting("path", "where", text("a path"), default="."),
        Setting("size", "how much", number(1, 10), default=5),
        Setting("token", "who", text(), default=None, secret=True),
        Setting("headers", "what else", mapping(), default={}, secret=True),
    )

    def write(self, batch: Batch) -> None:
        raise AssertionError


class NeedySink(PlainSink):
    settings = (Setting("url", "where it is", text("a URL")),)


@pytest.fixture(autouse=True)
def _kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sink_kinds,
        "SINKS",
        {"plain": f"{__name__}:PlainSink", "needy": f"{__name__}:NeedySink", "broken": "no_such_module:Sink"},
    )
    monkeypatch.setitem(sys.modules, __name__, sys.modules[PlainSink.__module__])
    monkeypatch.delenv("NO_SUCH", raising=False)


def read(folder: Path, content: str, name: str = "shop.toml") -> Config:
    path = folder / name
    path.write_text(content, "utf-8")
    return read_config(path)


# -- what is right -----------------------------------------------------------------------------------------------------


def test_five_lines_are_a_pipeline(tmp_path: Path) -> None:
    config = read(tmp_path, SOURCE + PLAIN)
    assert (config.name, config.folder, config.every) == ("shop", tmp_path / "shop.dblog", 5.0)
    assert (config.state, config.spool, config.http, config.throttle) == (None, None, None, {})
    assert config.source["tables"] == "public.*, !public.tmp_*"
    assert config.private
    (sink,) = config.sinks
    assert (sink.name, sink.kind, sink.maker, sink.routes) == ("plain", "plain", PlainSink, ())
    assert sink.settings == {"path": ".", "size": 5, "token": None, "headers": {}}


def test_output_that_others_may_read(tmp_path: Path) -> None:
    assert not read(tmp_path, SOURCE + "[pipeline]\nprivate = false\n" + PLAIN).private


def test_everything_has_its_place(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        [source]
        url = "mysql://cdc@db.example/shop"
        tables = "orders, shop2.*"
        dump = "never"
        watermark = "none"
        [source.options]
        chunkRows = 500
        heartbeatSeconds = 7
        [pipeline]
        name = "sales_1"
        folder = "kept"
        spool = "s3://bucket/spool"
        every = 0.5
        state = "state.db"
        http = "127.0.0.1:0"
        [throttle]
        rows_per_second = 100
        paused = true
        [[table]]
        match = "orders"
        target = "{schema}_x.{table}"
        include = ["id", "total"]
        rename = { total = "sum", env = "file" }
        mask = { total = "null" }
        where = "total > 0"
        sinks = ["b"]
        [[table]]
        match = "shop2.*"
        exclude = ["notes"]
        [[sink]]
        type = "plain"
        name = "a"
        size = 7
        [[sink]]
        type = "plain"
        name = "b"
        [[sink]]
        type = "broken"
        enabled = false
        nonsense = "${NO_SUCH}"
        """,
    )
    assert (config.name, config.folder, config.spool) == ("sales_1", tmp_path / "kept", "s3://bucket/spool")
    assert (config.every, config.state, config.http) == (0.5, str(tmp_path / "state.db"), "127.0.0.1:0")
    assert config.throttle == {"rows_per_second": 100.0, "paused": True}
    assert config.source["chunkRows"] == "500"
    assert (config.source["dump"], config.source["watermark"]) == ("never", "none")
    a, b = config.sinks
    assert (a.name, a.settings["size"], [r.pattern.text for r in a.routes]) == ("a", 7, ["shop2.*"])
    assert [r.pattern.text for r in b.routes] == ["orders", "shop2.*"]
    orders = b.routes[0]
    assert orders.pattern.matches(TableName("shop", "orders"))
    assert (orders.target, orders.include, orders.where) == ("{schema}_x.{table}", ("id", "total"), "total > 0")
    assert (orders.rename, orders.mask) == ({"total": "sum", "env": "file"}, {"total": "null"})
    assert not config.alone


@pytest.mark.parametrize(("name", "called"), [("Web Shop.toml", "web_shop"), ("é.toml", "pipeline"), ("7.toml", "7")])
def test_a_pipeline_is_called_like_its_file(tmp_path: Path, name: str, called: str) -> None:
    assert read(tmp_path, SOURCE + PLAIN, name).name == called


# -- secrets and the environment ---------------------------------------------------------------------------------------


def test_a_password_goes_into_the_url_and_does_not_show_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "pa/ss@w:rd")
    (tmp_path / "token").write_text("tok-99\n")
    config = read(
        tmp_path,
        SOURCE.replace("tables", 'password = { env = "SHOP_PASSWORD" }\ntables')
        + PLAIN
        + 'token = { file = "token" }\nheaders = { Authorization = { env = "SHOP_PASSWORD" }, Plain = "h-1" }\n',
    )
    assert config.source["url"] == "postgresql://cdc:pa%2Fss%40w%3Ard@db.example/shop"
    settings = config.sinks[0].settings
    assert (settings["token"], settings["headers"]["Authorization"]) == ("tok-99", "pa/ss@w:rd")
    shown = f"{config!r} {config.sinks!r} {config.source!r}".replace(repr(config.secrets), "")
    assert not any(secret in shown for secret in ("pa/ss@w:rd", "pa%2Fss", "tok-99", "h-1"))
    assert {"pa/ss@w:rd", "tok-99"} <= set(config.secrets)


def test_a_state_store_is_a_secret_only_if_it_has_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "zookeeper://me:pa55-w0rd-7@a,b,c/dblog"
    monkeypatch.setenv("SHOP_STATE", url)
    for written in ('{ env = "SHOP_STATE" }', f"'{url}'", "'${SHOP_STATE}'"):
        config = read(tmp_path, SOURCE + f"[pipeline]\nstate = {written}\n" + PLAIN)
        assert config.state == url
        assert url in config.secrets
        assert "pa55-w0rd-7" not in repr(config)
    for plain in ("zookeeper://a,b,c/dblog", "off"):
        config = read(tmp_path, SOURCE + f"[pipeline]\nstate = '{plain}'\n" + PLAIN)
        assert repr(config.state) == repr(plain)
        assert plain not in config.secrets
    config = read(tmp_path, SOURCE + "[pipeline]\nstate = 'state.db'\n" + PLAIN)
    assert config.state == str(tmp_path / "state.db")
    assert "state.db" not in config.secrets


def test_a_setting_that_is_a_table_may_have_an_entry_called_file_or_env(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "pass-1")
    (sink,) = read(tmp_path, SOURCE + PLAIN + 'headers = { file = "activity.db" }\n').sinks
    assert sink.settings["headers"] == {"file": "activity.db"}
    (sink,) = read(tmp_path, SOURCE + PLAIN + 'headers = { env = { env = "SHOP_PASSWORD" } }\n').sinks
    assert sink.settings["headers"] == {"env": "pass-1"}


def test_texts_are_filled_in_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "lake-7")
    config = read(tmp_path, SOURCE + PLAIN + 'path = "/x/${PLACE}/$${PLACE}/$PLACE"\n')
    assert config.sinks[0].settings["path"] == "/x/lake-7/${PLACE}/$PLACE"


def test_an_error_shows_a_text_as_it_is_written_and_not_what_was_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN_VALUE", "secret-7")
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SOURCE + '[pipeline]\nname = "a-${HIDDEN_VALUE}"\n' + PLAIN)
    assert "'a-${HIDDEN_VALUE}'" in caught.value.message
    assert "secret-7" not in str(caught.value)


STORAGE = """
[pipeline]
folder = "s3a://bucket/kept"
[storage]
endpoint = "https://storage.example:9000"
access_key = { env = "STORAGE_KEY" }
secret_key = { file = "key" }
"""


def test_the_storage_is_given_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_KEY", "the-access-key")
    (tmp_path / "key").write_text("the-secret-key\n")
    config = read(tmp_path, SOURCE + STORAGE + PLAIN)
    assert config.folder == "s3a://bucket/kept", "a URI is not a path below the file's folder"
    assert config.objects == ObjectStorage("https://storage.example:9000", None, "the-access-key", "the-secret-key")
    assert {"the-access-key", "the-secret-key"} <= set(config.secrets)
    assert "the-access-key" not in repr(config)
    assert "the-secret-key" not in repr(config)


def test_what_is_wrong_with_the_storage_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = '[storage]\nendpoint = "storage.example"\nsecret = "x"\n[source.options]\nstorageRegion = "eu"\n'
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, SOURCE + PLAIN.replace("[[sink]]", f"{wrong}[[sink]]", 1))
    assert "storage has no setting 'secret'" in str(refused.value)
    assert "'storage.endpoint' has the value 'storage.example'" in str(refused.value)
    assert "source.options.storageRegion cannot be set" in str(refused.value)
    assert "storage.region" in str(refused.value)


# -- what is wrong -----------------------------------------------------------------------------------------------------

WRONG = [
    ("[source", "is not TOML"),
    ("", "source needs the setting 'url'"),
    (PLAIN, "source needs the setting 'tables'"),
    (SOURCE, "there is no sink"),
    (SOURCE + PLAIN + "enabled = false\n", "no sink is enabled"),
    (SOURCE + PLAIN + 'enabled = "no"\n', "setting 'sink.plain.enabled' has the value 'no'", "true or false"),
    ("source = 3\n" + PLAIN, "'source' is not a table"),
    (SOURCE + '[sink]\ntype = "plain"\n', "'sink' is not a list of tables", "write [[sink]]"),
    (SOURCE + "sinks = 1\n" + PLAIN, "source has no setting 'sinks'"),
    (SOURCE + "[pipelin]\nname = 'x'\n" + PLAIN, "there is no section 'pipelin'", "did you mean 'pipeline'?"),
    (SOURCE + "[pipeline]\nevry = 3\n" + PLAIN, "pipeline has no setting 'evry'", "did you mean 'every'?"),
    (SOURCE + '[pipeline]\nevery = "5"\n' + PLAIN, "'pipeline.every' has the value '5'", "a number from 0 to"),
    (SOURCE + "[pipeline]\nevery = -1\n" + PLAIN, "'pipeline.every' has the value -1"),
    (SOURCE + '[pipeline]\nname = "My Shop"\n' + PLAIN, "'pipeline.name' has the value 'My Shop'", "lower-case"),
    (SOURCE + "[pipeline]\nname = 3\n" + PLAIN, "'pipeline.name' has the value 3"),
    (SOURCE + "dump = 'once'\n" + PLAIN, "'source.dump' has the value 'once'", "initial or never"),
    (SOURCE + "dump = ['never']\n" + PLAIN, "'source.dump' has the value ['never']"),
    (SOURCE + "watermark = true\n" + PLAIN, "'source.watermark' has the value True", "table or none"),
    (SOURCE.replace('["public.*", "!public.tmp_*"]', "[]") + PLAIN, "'source.tables' has the value []"),
    (SOURCE.replace('["public.*", "!public.tmp_*"]', '["!a"]') + PLAIN, "option 'tables'", "without '!'"),
    (SOURCE.replace('["public.*", "!public.tmp_*"]', '["a..b"]') + PLAIN, "option 'tables' with the value 'a..b'"),
    (SOURCE.replace("postgresql", "oracle") + PLAIN, "source: option 'url' is not the URL of a database"),
    (SOURCE.replace('"postgresql://cdc@db.example/shop"', "5") + PLAIN, "'source.url' has a value that is not shown"),
    (
        SOURCE + "[source.options]\nchunkRow = 5\n" + PLAIN,
        "source.options has no option 'chunkRow'",
        "mean 'chunkRows'?",
    ),
    (SOURCE + "[source.options]\nchunkRows = 'many'\n" + PLAIN, "'chunkRows' has the value 'many'"),
    (SOURCE + "[source.options]\nslot = 'x'\n" + PLAIN, "source.options.slot cannot be set", "pipeline.name"),
    (SOURCE + "[source.options]\nSpool = 'x'\n" + PLAIN, "source.options.Spool cannot be set", "pipeline.spool"),
    (SOURCE + "[source.options]\nbefore = [true]\n" + PLAIN, "'source.options' has the value {'before': [True]}"),
    (SOURCE + PLAIN + "password = 1\n", "sink.plain has no setting 'password'"),
    (SOURCE + "password = { env = 'NO_SUCH' }\n" + PLAIN, "source.password", "'NO_SUCH', which is not set"),
    (SOURCE + "password = { file = 'no/such' }\n" + PLAIN, "source.password", "cannot be read: No such file"),
    (SOURCE + "password = { env = '' }\n" + PLAIN, "source.password.env has the value ''"),
    (SOURCE + "password = { vault = 'x' }\n" + PLAIN, "'source.password' has a value that is not shown"),
    (
        SOURCE.replace("cdc@", "cdc:pw-1@") + "password = 'pw-2'\n" + PLAIN,
        "both source.url and source.password have a password",
    ),
    (SOURCE.replace("cdc@", "") + "password = 'pw-2'\n" + PLAIN, "source.url has no user"),
    (SOURCE.replace("db.example", "${NO_SUCH}") + PLAIN, "source.url names the environment variable 'NO_SUCH'"),
    (SOURCE + PLAIN + "path = '${NO_SUCH}'\n", "sink.plain.path names the environment variable 'NO_SUCH'"),
    (SOURCE + PLAIN + "headers = { A = '${NO_SUCH}' }\n", "sink.plain.headers.A names the environment"),
    (SOURCE + PLAIN + "token = 5\n", "'sink.plain.token' has a value that is not shown"),
    (SOURCE + PLAIN + "path = { env = 'HOME' }\n", "'sink.plain.path' has the value {'env': 'HOME'}", "a path"),
    (SOURCE + PLAIN + "size = 50\n", "'sink.plain.size' has the value 50", "a whole number from 1 to 10"),
    (SOURCE + PLAIN + "name = 'lake'\npth = 5\n", "sink.lake has no setting 'pth'", "did you mean 'path'?"),
    (SOURCE + "[[sink]]\npath = 'x'\n", "sink.1 needs the setting 'type'"),
    (SOURCE + "[[sink]]\ntype = 'plian'\n", "there is no sink of the type 'plian'", "did you mean 'plain'?"),
    (SOURCE + "[[sink]]\ntype = 'broken'\n", "'broken' cannot be loaded: No module named 'no_such_module'"),
    (SOURCE + "[[sink]]\ntype = 'needy'\n", "sink.needy needs the setting 'url': where it is", "a URL"),
    (SOURCE + PLAIN + "name = 'My Lake'\n", "'sink.My Lake.name' has the value 'My Lake'"),
    (SOURCE + PLAIN + PLAIN, "two sinks have the name 'plain'"),
    (SOURCE + "[throttle]\nrows = 5\n" + PLAIN, "throttle: unknown setting 'rows'"),
    (SOURCE + "[throttle]\nchunk_rows = -5\n" + PLAIN, "throttle: setting 'chunk_rows' has the value -5"),
    (SOURCE + "[pipeline]\nstate = 'off'\n[throttle]\nchunks = 5\n" + PLAIN, "[throttle] needs a state store"),
    (SOURCE + "[[table]]\n" + PLAIN, "table.1 needs the setting 'match'"),
    (SOURCE + "[[table]]\nmatch = 'a..b'\n" + PLAIN, "option 'table.a..b.match' with the value 'a..b'"),
    (SOURCE + "[[table]]\nmatch = '!a'\n" + PLAIN, "table.!a.match excludes tables"),
    (
        SOURCE + "[[table]]\nmatch = 'a'\nsinks = ['plan']\n" + PLAIN,
        "names the sink 'plan', which does not exist",
        "mean 'plain'?",
    ),
    (SOURCE + "[[table]]\nmatch = 'a'\ninclude = 'id'\n" + PLAIN, "'table.a.include' has the value 'id'"),
    (SOURCE + "[[table]]\nmatch = 'a'\nmask = { x = 'md5' }\n" + PLAIN, "'table.a.mask' has", "sha256 or redact or"),
    (SOURCE + "[[table]]\nmatch = 'a'\ntarget = '{db}.x'\n" + PLAIN, "'table.a.target' has the value '{db}.x'"),
    (SOURCE + "[[table]]\nmatch = 'a'\ntarget = '{'\n" + PLAIN, "'table.a.target' has the value '{'"),
    (SOURCE + "[[table]]\nmatch = 'a'\ncolumns = ['x']\n" + PLAIN, "table.a has no setting 'columns'"),
]


@pytest.mark.parametrize(("content", "said"), [(w[0], w[1:]) for w in WRONG], ids=[str(w[1])[:60] for w in WRONG])
def test_what_is_wrong_is_named_with_its_key_and_what_is_allowed(
    tmp_path: Path, content: str, said: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, content)
    found = str(caught.value)
    assert str(tmp_path / "shop.toml") in found
    assert all(part in found for part in said)
    assert not any(secret in found for secret in ("pw-1", "pw-2"))


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SOURCE + 'dump = "x"\n[pipeline]\nevery = "y"\n[[table]]\nmatch = 3\n' + PLAIN + "size = 0\n")
    found = caught.value.message
    assert "has 4 problems:" in found
    for key in ("source.dump", "pipeline.every", "table.3.match", "sink.plain.size"):
        assert f"'{key}'" in found


@pytest.mark.parametrize(("content", "said"), [(b"\xff", "is not UTF-8"), (None, "No such file or directory")])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "shop.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_config(path)
