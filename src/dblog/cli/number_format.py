"""Numbers, sizes, times and log positions as text for people."""

from __future__ import annotations

import time


def count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def size(nbytes: float | None) -> str:
    """Bytes: 1.5 MiB."""
    if nbytes is None:
        return "?"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def duration(seconds: float | None) -> str:
    """Seconds: 12 ms, 3.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return "?"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    units = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    first = next(i for i, (length, _) in enumerate(units) if whole >= length)
    (length, unit), (shorter, rest_unit) = units[first : first + 2]
    rest = whole % length // shorter
    return f"{whole // length} {unit}" + (f" {rest} {rest_unit}" if rest else "")


def ago(at: float | None) -> str:
    """How long ago a time was."""
    return "?" if at is None else f"{duration(max(0.0, time.time() - at))} ago"


def moment(at: float | None) -> str:
    """A time in the local time zone."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def bar(part: float | None, width: int = 20) -> str:
    """A bar for a share of 0 to 1."""
    if part is None:
        return ""
    part = min(max(part, 0.0), 1.0)
    full = int(part * width)
    return "█" * full + "░" * (width - full) + f" {int(part * 100):3d}%"
