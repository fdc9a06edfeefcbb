"""Targets that are given envelopes: what the tests read out of them."""

from __future__ import annotations

import base64
import datetime
import json
import math
from abc import abstractmethod
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.core.schema import Column, TableName
from tests.sinks.target import Key, Row, Target, replayed


class EnvelopeTarget(Target):
    """Every event as an envelope."""

    history = True

    @abstractmethod
    def texts(self, table: TableName) -> list[str]:
        """The events of a table, in the order written."""

    def rows(self, table: TableName) -> dict[Key, Row]:
        return replayed(self.events(table))

    def events(self, table: TableName) -> list[dict[str, Any]]:
        return [event(json.loads(text, parse_float=Decimal)) for text in self.texts(table)]

    def shown(self, column: Column, value: Any) -> Any:
        return shown(column.arrow, value)


def event(envelope: dict[str, Any]) -> dict[str, Any]:
    key = envelope["key"]
    return {
        **{name: envelope[name] for name in ("op", "lsn", "seq", "unchanged")},
        "key": None if key is None else tuple(key.values()),
        "row": envelope["after"],
    }


def shown(kind: pa.DataType, value: Any) -> Any:
    """What a reader of JSON gets for a value, with exact numbers."""
    if isinstance(value, list):
        return [shown(kind.value_type, item) for item in value]
    if isinstance(value, dict):
        return {name: shown(kind.field(name).type, item) for name, item in value.items()}
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return str(value).replace("nan", "NaN").replace("inf", "Infinity")
        return Decimal(str(np.float32(value) if kind == pa.float32() else value))
    if isinstance(value, datetime.datetime):
        if kind.tz is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return value
