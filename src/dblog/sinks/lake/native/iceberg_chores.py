"""What keeps an Iceberg table fast: the expiry of snapshots, and the removal of files that no snapshot has.

Every commit writes the list of all snapshots again, so it takes longer with each of them. The newest are kept, and of
the older ones the last of each hour, for as many days as the table's properties say (5 by default). So the list stays
short, and time travel works for all these days.

pyiceberg does not remove files. A file is removed if no snapshot had it twice, an hour apart, so that a reader that is
still at an expired snapshot can end, and if it is a day old, so that no writer is about to commit it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from dblog.sinks.lake.native.files import Chore, Commit

NEWEST = 50
"""How many of the newest snapshots are kept, whatever their age."""
MORE = 25
"""How many snapshots are expired at once at least."""
HOUR = 3_600_000
"""In milliseconds."""
DAYS = 5
"""Iceberg's default of `history.expire.max-snapshot-age-ms`."""
WRITING_SECONDS = 24 * 3600
"""A file that is younger may be one that a task is writing."""
FOLDERS = {"data": (".parquet",), "metadata": (".avro", ".metadata.json")}
"""Where files of a table are, and how their names end. Other files are not ours to remove."""


def chores(table: Table, marked: Callable[[dict[str, str]], bool]) -> list[Chore]:
    """The chores of a table, in their order. `marked` says whether a snapshot's summary has this pipeline's
    mark."""
    return [
        Chore("snapshots", 0, lambda commit, _: _expire(table, commit, marked)),
        Chore("files", 3600, lambda _, memory: _remove(table, memory)),
    ]


# -- snapshots -------------------------------------------------------------------------------------------------------


def kept(metadata: TableMetadata, now: int, marked: Callable[[dict[str, str]], bool]) -> set[int]:
    """The snapshots that stay: those of branches and tags, the newest, of the older ones the last of each hour until
    they are too old, and the newest that has a mark. `now` is in milliseconds since 1970."""
    properties = metadata.properties
    age = int(properties.get("history.expire.max-snapshot-age-ms", DAYS * 24 * HOUR))
    newest = max(NEWEST, int(properties.get("history.expire.min-snapshots-to-keep", 1)))
    ordered = sorted(metadata.snapshots, key=lambda s: (s.sequence_number or 0, s.timestamp_ms), reverse=True)
    found = {snapshot.snapshot_id for snapshot in ordered[:newest]}
    hours = {s.timestamp_ms // HOUR: s.snapshot_id for s in reversed(ordered) if now - s.timestamp_ms <= age}
    found |= set(hours.values())
    found |= {s.snapshot_id for s in [s for s in ordered if marked(_summary(s))][:1]}
    for name, ref in metadata.refs.items():
        found.add(ref.snapshot_id)
        if name != MAIN_BRANCH and ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            found |= {s.snapshot_id for s in ancestors_of(metadata.snapshot_by_id(ref.snapshot_id), metadata)}
    return found


def _summary(snapshot: Any) -> dict[str, str]:
    return {} if snapshot.summary is None else dict(snapshot.summary.additional_properties)


def _expire(table: Table, commit: Commit, marked: Callable[[dict[str, str]], bool]) -> int:
    if len(table.metadata.snapshots) < NEWEST + MORE:
        return 0
    with commit() as free:
        if not free:
            return 0
        metadata = table.refresh().metadata
        stay = kept(metadata, int(time.time() * 1000), marked)
        gone = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in stay]
        current = metadata.current_snapshot()
        if len(gone) < MORE or current is None:
            return 0
        table.catalog.commit_table(
            table,
            (
                AssertTableUUID(uuid=metadata.table_uuid),
                AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": current.snapshot_id}),
            ),
            (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),),
        )
    return len(gone)


# -- files -----------------------------------------------------------------------------------------------------------


def _remove(table: Table, memory: dict[str, Any]) -> int:
    """Remove the files that no snapshot has, and had none the last time. `memory` has these files."""
    if not isinstance(table.io, PyArrowFileIO):
        return 0
    before = time.time() - WRITING_SECONDS
    listed = _listed(table, table.io)
    table.refresh()  # after the list: what is committed in between is named by a snapshot
    named = {_path(name) for name in _named(table)}
    root = _path(table.location()).rstrip("/") + "/"
    if any(path not in listed for path in map(_path, _current(table)) if path.startswith(root)):
        return 0  # the storage writes paths in another form: nothing is known of what is in use
    unused = {path for path, modified in listed.items() if modified < before and path not in named}
    gone = unused & memory.get("unused", set())
    files = _file_system(table, table.io)
    for path in sorted(gone):
        files.delete_file(path)
    memory["unused"] = unused - gone
    return len(gone)


def _file_system(table: Table, io: PyArrowFileIO) -> pafs.FileSystem:
    scheme, place, _ = PyArrowFileIO.parse_location(table.location(), io.properties)
    return io.fs_by_scheme(scheme, place)


def _path(location: str) -> str:
    """A location as Arrow's file systems name it."""
    return str(PyArrowFileIO.parse_location(location)[2])


def _listed(table: Table, io: PyArrowFileIO) -> dict[str, float]:
    """The files in the table's folders, with the times at which they were modified."""
    files = _file_system(table, io)
    found: dict[str, float] = {}
    for folder, endings in FOLDERS.items():
        root = f"{_path(table.location()).rstrip('/')}/{folder}"
        for info in files.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=True)):
            if info.is_file and info.mtime_ns is not None and info.base_name.endswith(endings):
                found[info.path] = info.mtime_ns / 1e9
    return found


def _named(table: Table) -> Iterable[str]:
    """Every file that the table's metadata or one of its snapshots names."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        manifests |= {manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        yield path
        yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


def _current(table: Table) -> list[str]:
    """The data files of the current snapshot."""
    return [task.file.file_path for task in table.scan().plan_files()]
