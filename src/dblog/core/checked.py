"""Dataclasses as JSON data, and back: each value is checked against its annotation. For data from outside."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def to_data(value: Any) -> Any:
    """Turn a value of dataclasses and tuples into JSON data. Fields that have their default are left out."""
    if is_dataclass(value):
        given = ((f, getattr(value, f.name)) for f in fields(value))
        return {f.name: to_data(v) for f, v in given if f.default is MISSING or v != f.default}
    if isinstance(value, tuple):
        return [to_data(v) for v in value]
    return value


def from_data(kind: type[_T], data: Any) -> _T:
    """Turn JSON data of `to_data` back into a value of this kind. Raises ValueError if the data does not fit."""
    value: _T = _value(kind, data)
    return value


def _value(kind: Any, data: Any) -> Any:
    if kind in (str, int, bool, NoneType):
        if type(data) is not kind:
            raise ValueError(f"{data!r} is not of the type {kind.__name__}")
        return data
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), data)
    if isinstance(kind, UnionType):  # of a type and None
        return None if data is None else _value(get_args(kind)[0], data)
    return _fields(kind, data)


def _tuple(kinds: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ValueError(f"{data!r} is not a list")
    if kinds[-1] is Ellipsis:
        return tuple(_value(kinds[0], item) for item in data)
    if len(data) != len(kinds):
        raise ValueError(f"{data!r} does not have {len(kinds)} items")
    return tuple(_value(kind, item) for kind, item in zip(kinds, data, strict=True))


def _fields(kind: type, data: Any) -> Any:
    """A named tuple, whose data is a list, or a dataclass, whose data is an object."""
    hints = _hints(kind)
    if issubclass(kind, tuple):
        return kind(*_tuple(tuple(hints.values()), data))
    if not isinstance(data, dict) or not data.keys() <= hints.keys():
        raise ValueError(f"{data!r} is not a {kind.__name__}")
    try:
        return kind(**{name: _value(hints[name], value) for name, value in data.items()})
    except TypeError as error:  # a field is missing
        raise ValueError(f"{data!r} is not a {kind.__name__}") from error


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
