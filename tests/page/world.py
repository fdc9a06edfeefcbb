"""Pipelines that do not run: their documents are written to a state store as running pipelines write them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from typing import Any

from dblog.state.events import event
from dblog.state.history import KEEP_SAMPLES, SAMPLE_SECONDS, sample
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Progress, Request, State, TableProgress, Wish
from dblog.state.store import Store

SHOP = ("orders", "order_lines", "customers", "products", "payments", "shipments", "returns", "reviews")
COLUMNS = [
    ["id", "bigint"],
    ["customer_id", "bigint"],
    ["state", "text"],
    ["total", "numeric(12,2)"],
    ["at", "timestamptz"],
]


def tables(count: int = 8, schema: str = "public") -> dict[str, Any]:
    """The tables of a status."""
    names = [SHOP[n] if n < len(SHOP) else f"events_{n:04d}" for n in range(count)]
    return {
        f"{schema}.{name}": {
            "version": f"{(n + 3) * 0x9E3779B1 & 0xFFFFFFFF:08x}",
            "table": f"{schema}.{name}",
            "key": ["id"],
            "columns": COLUMNS,
            "rows": 1000 * (n + 1) ** 2 if n % 7 else 4_800_000,
            "operations": {"create": 40 * n, "update": 900 - n % 900, "delete": n % 13, "truncate": 0},
        }
        for n, name in enumerate(names)
    }


def status(now: float, *, database: str = "shop", **changed: Any) -> dict[str, Any]:
    """The status of a pipeline that runs well."""
    begun = now - 6 * 3600
    found: dict[str, Any] = {
        "state": "running",
        "error": None,
        "source": f"postgresql://db-1.example:5432/{database}",
        "slot": f"dblog_{database}",
        "host": "worker-1",
        "pid": 4711,
        "started_at": begun,
        "tables": tables(),
        "position": 88_120_004_100,
        "planned": 88_120_512_000,
        "captured": 88_120_600_000,
        "latest": 88_120_601_500,
        "lag_bytes": 597_400,
        "lag_seconds": 0.8,
        "capture_lag_seconds": 0.04,
        "events": 2_400_000,
        "rows": 1_200_000,
        "dropped": 312,
        "windows": 410,
        "batches": 4100,
        "batch_seconds": 3690.0,
        "last_batch_seconds": 0.9,
        "selects": 820,
        "select_seconds": 300.0,
        "last_select_seconds": 0.3,
        "spool_bytes": 44 << 20,
        "slot_health": {"active": True, "wal_status": "reserved", "retained_bytes": 96 << 20, "safe_bytes": 9 << 30},
        "waiting": None,
        "left_out": {},
        "joining": [],
    }
    return {**found, **changed}


def start(store: Store, name: str, now: float | None = None, *, hours: float = 2.0, **changed: Any) -> Pipeline:
    """A pipeline with a status and the samples of some hours."""
    now = time.time() if now is None else now
    pipeline = Pipeline(store, name)
    pipeline.open()
    said = status(now, database=name.partition("_")[0], **changed)
    pipeline.say(said)
    past(pipeline, said, now, hours)
    return pipeline


def past(pipeline: Pipeline, said: Mapping[str, Any], now: float, hours: float) -> None:
    """Write samples that lead up to the status."""
    chance = random.Random(pipeline.name)
    count = min(KEEP_SAMPLES, int(hours * 3600 / SAMPLE_SECONDS))
    speed = 40 + chance.random() * 400
    events, rows, dropped, batches, took = (float(said[n] or 0) for n in COUNTED)
    values = []
    for back in range(1, count + 1):
        at = now - back * SAMPLE_SECONDS
        wave = 1 + 0.6 * math.sin(at / 900) + 0.25 * chance.random()
        dumping = 1800 * max(0.0, math.sin(at / 2600)) ** 3
        events -= speed * wave * SAMPLE_SECONDS
        rows -= dumping * SAMPLE_SECONDS
        dropped -= dumping * SAMPLE_SECONDS * 0.0004
        batches -= 14
        took -= 14 * (0.7 + 0.3 * wave)
        lag = max(0.1, (said["lag_seconds"] or 0.0) * (0.6 + 0.5 * wave))
        health = dict(said["slot_health"] or {})
        if health.get("retained_bytes"):
            health["retained_bytes"] = int(health["retained_bytes"] * (1 - 0.0015 * back))
        counters = zip(COUNTED, map(int, (events, rows, dropped, batches)), strict=False)
        values.append(
            sample({**said, **dict(counters), "batch_seconds": took, "lag_seconds": lag, "slot_health": health}, at)
        )
    pipeline.store.append(pipeline.at("history"), list(reversed(values)), keep=KEEP_SAMPLES)


COUNTED = ("events", "rows", "dropped", "batches", "batch_seconds")


def dump(pipeline: Pipeline, request: Request, read: Mapping[str, tuple[int, int]], **said: Any) -> str:
    """A dump with its progress: rows read and to read, by table."""
    found = pipeline.submit(request)
    progress = {
        table: TableProgress(
            State.completed if done >= total else State.running, done, done - done // 900, done // 900, total
        )
        for table, (done, total) in read.items()
    }
    given = {"state": State.running, "started_at": time.time() - 95, "active_seconds": 95.0, **said}
    pipeline.mirror(found.id, Progress(tables=progress, **given))
    return found.id


def fleet(store: Store, now: float | None = None) -> None:
    """A few pipelines, of which some are not well."""
    now = time.time() if now is None else now
    start(store, "shop", now)
    start(store, "billing", now, lag_seconds=0.3, lag_bytes=20_000, planned=88_120_004_100, captured=88_120_024_100)
    late = {"position": 88_020_000_000, "planned": 88_110_000_000, "lag_bytes": 100_601_500, "lag_seconds": 184.0}
    start(store, "search_index", now, **late)
    slot = {"active": True, "wal_status": "extended", "retained_bytes": 31 << 30, "safe_bytes": 2 << 30}
    start(store, "warehouse", now, slot_health=slot, lag_seconds=12.0)
    start(store, "crm", now, state="stopped")
    error = (
        "the log no longer reaches back to position 8811020011: the slot 'dblog_ledger' is lost\n"
        "hint: dblog slots drop dblog_ledger, then start the pipeline again: it dumps all tables"
    )
    start(store, "ledger", now, state="failed", error=error, lag_seconds=None, lag_bytes=None, latest=None)
    waits = start(store, "audit_kafka", now, lag_seconds=41.0)
    waits.deliver(
        {
            "state": "waiting for sink",
            "since": now - 35,
            "reason": "the sink cannot be reached: kafka-1.example:9092 refuses the connection",
            "restarts": 2,
            "unready_after": 60.0,
            "sink": {"writer": "kafka"},
        }
    )


def busy(store: Store) -> None:
    """What a pipeline has that is used: dumps, schemas, actions."""
    pipeline = Pipeline(store, "shop", by="maria")
    dump(
        pipeline,
        Request("public.orders, public.payments"),
        {"public.orders": (3_100_000, 4_800_000), "public.payments": (0, 25_000)},
    )
    paused = dump(pipeline, Request("public.customers", where="country = 'PT'"), {"public.customers": (4200, 9000)})
    pipeline.wish(paused, Wish.pause)
    ended = {"state": State.completed, "finished_at": time.time() - 1300, "started_at": time.time() - 1900}
    dump(pipeline, Request("public.reviews", keys=(("17",), ("18",))), {"public.reviews": (2, 2)}, **ended)
    pipeline.mirror(
        "initial",
        Progress(
            State.completed,
            None,
            time.time() - 21000,
            time.time() - 20000,
            1000.0,
            {
                name: TableProgress(State.completed, each["rows"], each["rows"] - 7, 7, each["rows"])
                for name, each in tables().items()
            },
        ),
    )
    pipeline.change({"rows_per_second": 20_000})
    earlier = {
        "table": "public.orders",
        "key": ["id"],
        "columns": [*COLUMNS[:3], ["total", "integer"], ["note", "text"]],
    }
    pipeline.saw_schema("1f00aa31", {**earlier, "seen_at": time.time() - 86_400 * 9})
    now = tables()["public.orders"]
    pipeline.saw_schema(
        now["version"], {**{k: now[k] for k in ("table", "key", "columns")}, "seen_at": time.time() - 86_400}
    )


def rounds(pipeline: Pipeline, count: int, begin: float, seconds: float = 2.0, position: int = 88_120_004_100) -> None:
    """The events of a dump, of `count` windows, one every `seconds`, as a running pipeline writes them."""
    chance = random.Random(7)
    before: list[tuple[str, str, int]] = []
    found: list[dict[str, Any]] = []
    for window in range(count):
        at, token = begin + window * seconds, f"{chance.getrandbits(128):032x}"

        def tell(kind: str, after: float, at: float = at, **facts: Any) -> None:
            found.append(event(kind, at + after * seconds, facts))

        tell("offset_committed", 0.0, position=position, events=40 * window)
        for chunk, table, rows in before:
            tell("chunk_selected", 0.02, chunk=chunk, dump="1-2651", table=table, rows=rows, seconds=0.4 * seconds)
        tell("watermark_written", 0.04, token=token)
        tell("watermark_seen", 0.1, token=token, position=position + 900)
        read = [
            (f"{chance.getrandbits(48):012x}", chance.choice(("public.orders", "public.payments")), 5000)
            for _ in range(5)
        ]
        tell("round_opened", 0.13, chunks=5, selects=[[c, "1-2651", t] for c, t, _ in read])
        tell("batch_planned", 0.14, position=position + 900, events=chance.randrange(20, 900), chunks=len(before))
        for chunk, table, rows in before:
            stale = chance.randrange(0, 3)
            for _ in range(stale):
                by = {"op": chance.choice(("update", "delete")), "lsn": position + 400, "seq": chance.randrange(9)}
                facts = {
                    "chunk": chunk,
                    "dump": "1-2651",
                    "table": table,
                    "key": [str(chance.randrange(10**6))],
                    "by": by,
                }
                tell("row_dropped", 0.95, **facts)
            tell("chunk_emitted", 0.96, chunk=chunk, dump="1-2651", table=table, rows=rows - stale, dropped=stale)
        before, position = read, position + 900
    pipeline.tell(sorted(found, key=lambda each: each["at"]))
