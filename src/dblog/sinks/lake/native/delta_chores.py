"""What keeps a Delta table fast: checkpoints of its log, and the removal of old log entries and of unused files.

delta-rs reads the commits after the last checkpoint again for every commit, so a checkpoint after few commits is worth
its time. None of these chores commits to the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow.fs as pafs
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.folder import Folder
from dblog.sinks.lake.native.files import Chore, Commit
from dblog.sinks.lake.native.maintenance import COMMITS

NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""A commit without the work that delta-rs else does after it: it lists the log for expired entries after every one."""
KEEP_HOURS = 7 * 24
"""Delta's default of `delta.deletedFileRetentionDuration`."""
WRITING_HOURS = 24
"""A file that is younger may be one that a task is writing. It is not removed, whatever the table's properties say."""


def chores(folder: Folder, table: DeltaTable) -> list[Chore]:
    """The chores of a table, in their order."""
    return [
        Chore("log_files", 3600, lambda commit, _: _clean_log(folder, table, commit)),
        Chore("checkpoints", 0, lambda _, __: _checkpoint(folder, table)),
        Chore("files", 24 * 3600, lambda _, __: _vacuum(folder, table)),
    ]


def since_checkpoint(folder: Folder, version: int) -> int:
    """How many commits the log has after its last checkpoint."""
    files, root = folder.opened
    try:
        with files.open_input_stream(f"{root}/_delta_log/_last_checkpoint") as stream:
            return version - int(json.loads(stream.read())["version"])
    except FileNotFoundError:
        return version + 1


def _checkpoint(folder: Folder, table: DeltaTable) -> int:
    with reached(folder.uri):
        if since_checkpoint(folder, table.version()) < COMMITS:
            return 0
        table.create_checkpoint()
    return 1


def _clean_log(folder: Folder, table: DeltaTable, commit: Commit) -> int:
    """Remove log entries before the last checkpoint that are older than the table's `delta.logRetentionDuration`.

    The lock is held, because delta-rs lists the log before it reads it: an entry must not go in between while a batch
    opens the table."""
    with commit() as free, reached(folder.uri):
        if not free:
            return 0
        before = _log_files(folder)
        table.cleanup_metadata()
        table.update_incremental()
        return before - _log_files(folder)


def _log_files(folder: Folder) -> int:
    files, root = folder.opened
    return len(files.get_file_info(pafs.FileSelector(f"{root}/_delta_log")))


def _vacuum(folder: Folder, table: DeltaTable) -> int:
    """Remove files that no version within the table's `delta.deletedFileRetentionDuration` has, and files that were
    never committed."""
    said = table.metadata().configuration.get("delta.deletedFileRetentionDuration")
    hours = KEEP_HOURS if said is None else _hours(said)
    if hours is None:
        return 0
    files, root = folder.opened
    with reached(folder.uri):
        unused = table.vacuum(max(hours, WRITING_HOURS), dry_run=True, enforce_retention_duration=False, full=True)
        for name in unused:  # delta-rs itself would commit what it removes, and conflict with batches
            with suppress(FileNotFoundError):
                files.delete_file(f"{root}/{name}")
    return len(unused)


def _hours(interval: str) -> int | None:
    """An interval of a table property, as `interval 2 days`, rounded up; None if it has another form."""
    found = re.fullmatch(r"(?:interval\s+)?(\d+)\s+(minute|hour|day|week)s?", interval.strip(), re.IGNORECASE)
    if found is None:
        return None
    minutes = int(found[1]) * {"minute": 1, "hour": 60, "day": 1440, "week": 10080}[found[2].lower()]
    return -(-minutes // 60)


@contextmanager
def reached(uri: str) -> Iterator[None]:
    """Raise SinkUnreachable for errors that may pass, and SinkError for others."""
    try:
        yield
    except CommitFailedError as error:
        raise SinkUnreachable(f"somebody else writes to {uri}: {error}", hint="it is tried again") from error
    except PermissionError as error:
        raise SinkError(f"cannot write to {uri!r}: {error}", hint="see that it can be written") from error
    except OSError as error:
        raise SinkUnreachable(f"cannot write to {uri!r}: {error}", hint="see that it is there") from error
    except DeltaError as error:
        raise SinkError(f"cannot write to {uri!r}: {error}", hint="see that the table is whole") from error
