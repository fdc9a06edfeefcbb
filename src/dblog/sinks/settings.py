"""Settings that several kinds of sinks have."""

from __future__ import annotations

from dblog.core.settings import Setting, choice

SCHEMA_CHANGES = Setting(
    "schema_changes",
    "what to do when the source has a column, or a type, that the target does not have: evolve changes the target, "
    "ignore leaves the column out, fail stops",
    choice("evolve", "ignore", "fail"),
    default="evolve",
)
"""The setting of every sink whose target has columns."""
