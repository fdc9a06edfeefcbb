"""One commit to an Iceberg table: the files that it adds and removes, as a snapshot on top of one other snapshot.

pyiceberg's own transactions are not used. When another writer has committed in between, they are applied again on top
of its snapshot, and an append is then applied without any check: a batch would be written twice. Here the catalog gets
one request, for a change of the snapshot that the batch was computed on. If the table has another snapshot by then, the
catalog refuses.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.typedef import TableVersion
from pyiceberg.types import StructType

MERGE_MANIFESTS = 32
"""How many small manifests are written into one. A manifest lists files of the table, and each commit adds one."""
SMALL_MANIFEST = 1 << 20
"""A manifest of less than this size is small, in bytes."""
COMPRESSION: Literal["deflate"] = "deflate"
"""Of manifests. It is Iceberg's default, which all readers know."""


class Manifests:
    """The manifests of a table's current snapshot, and the files that they list. Each is read once, because a manifest
    never changes."""

    def __init__(self) -> None:
        self._snapshot: int | None = None
        self._manifests: list[ManifestFile] = []
        self._entries: dict[str, list[ManifestEntry]] = {}

    def of(self, table: Table) -> list[ManifestFile]:
        """The manifests of the current snapshot that list files."""
        current = table.metadata.current_snapshot()
        if current is None:
            return []
        if current.snapshot_id != self._snapshot:
            self.know(current.snapshot_id, current.manifests(table.io), {})
        return self._manifests

    def know(self, snapshot: int, manifests: Sequence[ManifestFile], new: Mapping[str, list[ManifestEntry]]) -> None:
        """Take note of a snapshot, and of the files that new manifests list."""
        self._manifests = [m for m in manifests if m.has_added_files() or m.has_existing_files()]
        self._snapshot = snapshot
        names = {m.manifest_path for m in self._manifests}
        self._entries = {name: entries for name, entries in {**self._entries, **new}.items() if name in names}

    def entries(self, manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
        """The files that are in the table."""
        found = self._entries.get(manifest.manifest_path)
        if found is None:
            found = self._entries[manifest.manifest_path] = manifest.fetch_manifest_entry(io)
        return found


@dataclass(frozen=True)
class Change:
    """What a commit does to the files of a table."""

    added: Sequence[DataFile]
    removed: frozenset[str]
    """Paths of files."""
    same_rows: bool = False
    """Whether the files that are added have the rows of those that are removed."""

    @property
    def operation(self) -> Operation:
        if not self.removed:
            return Operation.APPEND
        return Operation.OVERWRITE if self.added else Operation.DELETE


def commit(table: Table, known: Manifests, change: Change, summary: Mapping[str, str], mark_name: str | None) -> None:
    """Commit a change. `summary` is added to the snapshot's summary. It also becomes the table property `mark_name`, if
    there is one, with the id and the number of the snapshot. Raises CommitFailedException if `table` is not up to
    date."""
    metadata, base = table.metadata, table.metadata.current_snapshot()
    assert metadata.format_version == 2
    made, number = metadata.new_snapshot_id(), metadata.next_sequence_number()
    manifests, new, gone = _manifests(table, known, change, made, number)
    path = _metadata_path(table, f"snap-{made}-0-{uuid.uuid4()}.avro")
    parent = None if base is None else base.snapshot_id
    with write_manifest_list(2, table.io.new_output(path), made, parent, number, COMPRESSION) as writer:
        writer.add_manifests(manifests)
        manifests = [writer.prepare_manifest(manifest) for manifest in manifests]  # as they are in the list
    counts = SnapshotSummaryCollector()
    for file in change.added:
        counts.add_file(file, metadata.schema())
    for file in gone:
        counts.remove_file(file, metadata.schema())
    facts = update_snapshot_summaries(
        Summary(change.operation, **counts.build(), **summary), None if base is None else base.summary
    )
    if change.same_rows:  # pyiceberg does not count for this operation
        facts = Summary(Operation.REPLACE, **facts.additional_properties)
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": made,
            "parent-snapshot-id": parent,
            "manifest-list": path,
            "sequence-number": number,
            "summary": facts,
            "schema-id": metadata.current_schema_id,
        }
    )
    kept = json.dumps({"snapshot": str(made), "sequence": str(number), **summary})
    response = table.catalog.commit_table(
        table,
        (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": parent}),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        ),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate.model_validate(
                {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": made}
            ),
            *([] if mark_name is None else [SetPropertiesUpdate(updates={mark_name: kept})]),
        ),
    )
    old = {entry.metadata_file for entry in metadata.metadata_log}
    table.metadata, table.metadata_location = response.metadata, response.metadata_location
    known.know(made, manifests, new)
    if response.metadata.properties.get("write.metadata.delete-after-commit.enabled") == "true":
        _delete(table.io, old - {entry.metadata_file for entry in response.metadata.metadata_log})


def _manifests(
    table: Table, known: Manifests, change: Change, snapshot: int, number: int
) -> tuple[list[ManifestFile], dict[str, list[ManifestEntry]], list[DataFile]]:
    """The manifests of the new snapshot, the files that the new one among them lists, and the files that are removed.

    The new manifest has the files that are added and removed, and the other files of manifests that have a removed one.
    """
    found = known.of(table)
    data = [m for m in found if m.content == ManifestContent.DATA]
    small = [m for m in data if m.manifest_length < SMALL_MANIFEST]
    again = {m.manifest_path for m in small} if len(small) >= MERGE_MANIFESTS else set()
    if change.removed:
        again |= {m.manifest_path for m in data if not change.removed.isdisjoint(_paths(known.entries(m, table.io)))}
    entries = [e for m in data if m.manifest_path in again for e in known.entries(m, table.io)]
    gone = [e for e in entries if e.data_file.file_path in change.removed]
    if len(gone) != len(change.removed):
        lost = change.removed - _paths(gone)
        raise CommitFailedException(f"the table no longer has the files {sorted(lost)}")
    kept = [m for m in found if m.manifest_path not in again]
    if not entries and not change.added:
        return kept, {}, []
    path = _metadata_path(table, f"{uuid.uuid4()}-m0.avro")
    live = [e for e in entries if e.data_file.file_path not in change.removed]
    with _ManifestWriter(table.spec(), table.schema(), table.io.new_output(path), snapshot, COMPRESSION) as writer:
        for file in change.added:
            writer.add(_added(file, snapshot, None))
        for entry in gone:
            writer.delete(entry)
        for entry in live:
            writer.existing(entry)
    new = [*(_added(file, snapshot, number) for file in change.added), *live]
    return [writer.to_manifest_file(), *kept], {path: new}, [entry.data_file for entry in gone]


def _added(file: DataFile, snapshot: int, number: int | None) -> ManifestEntry:
    """The entry of a new file. In its manifest it has no number: it gets the one that the manifest has in its list."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot,
        sequence_number=number,
        file_sequence_number=number,
        data_file=file,
    )


class _ManifestWriter(ManifestWriterV2):
    """Does not build the schema of manifests again for each one, which takes longer than to write it."""

    def _with_partition(self, format_version: TableVersion) -> Schema:
        return _entry_schema(format_version)


@cache
def _entry_schema(format_version: TableVersion) -> Schema:
    """The schema of the manifests of tables that are not partitioned."""
    file = data_file_with_partition(StructType(), format_version)
    return manifest_entry_schema_with_data_file(format_version, file)


def _paths(entries: Iterable[ManifestEntry]) -> set[str]:
    return {entry.data_file.file_path for entry in entries}


def _metadata_path(table: Table, name: str) -> str:
    return table.location_provider().new_metadata_location(name)


def _delete(io: FileIO, paths: Iterable[str]) -> None:
    """Delete files that nothing refers to. If that fails, they stay."""
    for path in paths:
        with suppress(Exception):
            io.delete(path)
