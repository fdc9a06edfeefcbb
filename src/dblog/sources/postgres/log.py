"""The change log of a slot, read in the way that is faster at the moment (`sources.base.LogStream`).

Near the end of the log that is the replication protocol (`stream`), far behind it calls on copies of the slot
(`catch_up`). Both use one decoder and the same positions, so that a reader does not see where one follows the other: a
transaction comes from the first way whose position reaches the beginning of its commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dblog.databases.postgres.connect import Address
from dblog.errors import SourceError
from dblog.sources.base import Run
from dblog.sources.postgres.catch_up import REREAD_BYTES, CatchUpLog
from dblog.sources.postgres.copy_session import CallsRefused, CopySession
from dblog.sources.postgres.opening import Opening
from dblog.sources.postgres.pgoutput import Decoder
from dblog.sources.postgres.slot_copy import Ask, SlotState, await_readers, copy_names, refuse_readers, slot_state
from dblog.sources.postgres.stream import PostgresLog

log = logging.getLogger(__name__)

FAR_BYTES = 64 << 20
"""How far behind the end of the log a reader that opens it must be to read it by calls, in bytes of log."""
FALLEN_BYTES = 256 << 20
"""How far behind a stream that is being read must be until calls take over, in bytes of log. To change takes about a
second, so it is more than at the opening of the log."""
LOOK_SECONDS, LOOK_BYTES = 5.0, 32 << 20
"""How often the end of the log is looked for at most: seconds since, and bytes that were received since."""


class SlotLog:
    """The log of a slot from a position on. `refused` is told when the server does not let us read by calls."""

    def __init__(
        self,
        address: Address,
        slot: str,
        publication: str,
        opening: Opening,
        decoder: Decoder,
        *,
        ask: Ask,
        calls: bool,
        in_progress: str | None,
        refused: Callable[[], None],
    ) -> None:
        """`ask` uses another session; `calls` says whether the log may be read by calls. `in_progress` is the
        folder for files of transactions in progress (`stream.PostgresLog`)."""
        self._address = address
        self._slot = slot
        self._publication = publication
        self._opening = opening
        self._first = opening.first
        self._shift = opening.shift
        self._position = opening.at
        """The log up to here, as the server counts, has been returned."""
        self._decoder = decoder
        self._ask = ask
        self._calls = calls
        self._in_progress = in_progress
        self._refused = refused
        self._received = 0
        self._looked_at = time.monotonic()
        try:
            self._log = self._open()
        finally:
            opening.release()

    def _open(self) -> PostgresLog | CatchUpLog:
        state = await_readers(self._ask, self._slot)
        if self._calls and self._far(state, FAR_BYTES):
            try:
                found = self._catch_up()
                behind = (state.latest - self._position) >> 20
                log.info("slot %s is %d MiB behind: its log is read by calls on copies of it", self._slot, behind)
                return found
            except CallsRefused as error:
                self._refuse(error)
        return self._stream()

    def _far(self, state: SlotState, behind: int) -> bool:
        """Whether the log is more than `behind` bytes behind, and is read faster by calls."""
        return state.latest - self._position > behind and self._position - state.restart < REREAD_BYTES

    def _catch_up(self) -> CatchUpLog:
        sessions: list[CopySession] = []
        try:
            for name in copy_names(self._slot):
                try:
                    sessions.append(CopySession(self._address, self._slot, name, self._publication))
                except SourceError:
                    if not sessions:
                        raise
                    break  # one is enough
            state = slot_state(self._ask, self._slot)
            if state.reader is not None:
                refuse_readers(self._slot, state)
        except BaseException:
            for session in sessions:
                session.close()
            raise
        return CatchUpLog(self._ask, self._slot, sessions, self._position, self._decoder)

    def _stream(self) -> PostgresLog:
        place = self._address, self._slot, self._publication, self._position
        found = PostgresLog(*place, self._decoder, in_progress=self._in_progress, link=self._opening.take())
        try:
            state = slot_state(self._ask, self._slot)
            if state.copied is not None:
                refuse_readers(self._slot, state)
        except BaseException:
            found.close()
            raise
        return found

    def _refuse(self, error: CallsRefused) -> None:
        log.warning("the log is read by the replication protocol only: %s", error.message)
        self._calls = False
        self._refused()

    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        if self._first is not None:
            first, self._first = self._first, None
            return [first]
        if self._log.over if isinstance(self._log, CatchUpLog) else self._fallen_behind():
            self._log.close()
            self._log = self._open()
            if isinstance(self._log, PostgresLog):
                log.info("slot %s: its log is read by the replication protocol", self._slot)
        try:
            runs = self._log.read(timeout, eager=eager)
        except CallsRefused as error:
            self._refuse(error)
            raise
        self._received += sum(run.nbytes for run in runs)
        self._opening.recent.note(runs)
        ends = [run.position - self._shift for run in runs if run.position is not None]
        self._position = max(self._position, self._log.idle_position, *ends[-1:])
        return runs

    def _fallen_behind(self) -> bool:
        """Whether the stream is so far behind that calls should take over. Only between transactions."""
        now = time.monotonic()
        if not self._calls or self._received < LOOK_BYTES or now - self._looked_at < LOOK_SECONDS:
            return False
        if self._decoder.inside:
            return False
        self._received, self._looked_at = 0, now
        return self._far(slot_state(self._ask, self._slot), FALLEN_BYTES)

    @property
    def calling(self) -> bool:
        """Whether the log is read by calls at the moment."""
        return isinstance(self._log, CatchUpLog)

    @property
    def coordinate(self) -> str | None:
        coordinate = self._opening.coordinate
        return None if coordinate is None else str(coordinate)

    @property
    def passing(self) -> bool:
        return False

    @property
    def idle_position(self) -> int:
        idle = 0 if self._first is not None else self._log.idle_position
        return idle + self._shift if idle else 0

    @property
    def heard(self) -> float:
        return self._log.heard

    def redefined(self) -> bool:
        return self._log.redefined()

    def acknowledge(self, position: int) -> None:
        self._log.acknowledge(max(0, position - self._shift))

    def close(self) -> None:
        self._log.close()
