"""The rules of the lease, one by one and in a simulated world."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from dblog.ha import lease as rules
from dblog.ha.lease import Election, Lease, Record
from tests.unit.ha.world import Overlap, World

HISTORIES, SECONDS = 200, 600.0


def holder(seconds: float = 10.0) -> Election:
    """An instance that has acquired the lease at 100, with an answer at 101."""
    election = Election("a", seconds)
    election.read(Record(), 100.0)
    wanted = election.wanted(100.0)
    assert wanted == Record("a", 1, seconds, 0)
    election.written(wanted, 1, 100.0, 101.0)
    return election


def test_a_lease_counts_from_before_the_request_was_sent() -> None:
    election = holder()
    assert election.lease(101.0) == Lease("a", 1, 109.0)
    assert election.lease(108.99) is not None
    assert election.lease(109.0) is None


def test_a_lost_lease_never_comes_back() -> None:
    election = holder()
    renewal = election.wanted(103.0)
    assert renewal == Record("a", 1, 10.0, 1)
    assert election.lease(109.5) is None
    election.written(renewal, 2, 103.0, 109.5)
    assert election.lease(109.5) is None
    again = election.wanted(109.6)
    assert again == Record("a", 2, 10.0, 2)
    election.written(again, 3, 109.6, 109.7)
    assert election.lease(109.7) == Lease("a", 2, 118.6)


def test_a_renewal_that_fails_does_not_end_the_lease() -> None:
    election = holder()
    assert election.wanted(102.0) is None, "too early"
    assert election.wanted(102.5) is not None
    election.failed()
    assert election.lease(105.0) is not None
    assert election.must_read
    election.read(Record("a", 1, 10.0, 2), 105.0)  # the renewal had been done after all
    renewal = election.wanted(105.0)
    assert renewal is not None
    assert renewal.version == 2
    election.written(renewal, 3, 105.0, 106.0)
    assert election.lease(113.9) is not None
    assert election.lease(114.0) is None


def test_another_waits_for_a_whole_lease_after_the_last_renewal_it_has_seen() -> None:
    other = Election("b", 3.0)  # its own leases are shorter
    other.read(Record("a", 7, 10.0, 1), 0.0)
    other.read(Record("a", 7, 10.0, 2), 9.0)
    other.read(Record("a", 7, 10.0, 2), 18.9)
    assert other.wanted(18.9) is None
    assert other.wanted(19.0) == Record("b", 8, 3.0, 2)


def test_a_released_lease_is_free_at_once_and_its_epoch_goes_on() -> None:
    election = holder()
    freed = election.release()
    assert freed == Record(None, 1, 10.0, 1)
    assert election.lease(101.0) is None
    other = Election("b", 10.0)
    other.read(Record(None, 1, 10.0, 2), 0.0)
    assert other.wanted(0.0) == Record("b", 2, 10.0, 2)


def test_a_holder_whose_record_was_removed_is_the_leader_no_longer() -> None:
    election = holder()
    election.failed()
    election.read(Record(), 102.0)
    assert election.lease(102.0) is None
    assert election.wanted(102.0) == Record("a", 2, 10.0, 0), "epochs grow all the same"


@pytest.mark.parametrize("first", range(0, HISTORIES, 50))
def test_no_two_leaders_and_growing_epochs_in_any_history(first: int) -> None:
    leases = 0
    for seed in range(first, first + 50):
        world = World(seed)
        world.run(SECONDS)
        leases += len(world.epochs)
    assert leases > 50 * 3, "the lease hardly ever changed hands: this shows nothing"


def play(election: Callable[[str, float], Election]) -> None:
    for seed in range(2 * HISTORIES):
        World(seed, election).run(SECONDS)


class FromTheAnswer(Election):
    """Counts the lease from the answer, not from the request."""

    def written(self, record: Record, version: int, sent: float, now: float) -> None:
        super().written(record, version, now, now)


class SeenLongAgo(Election):
    """Takes a lease without having watched it: as with the database's clock, which may have jumped."""

    def read(self, record: Record, now: float) -> None:
        super().read(record, now)
        self._since = now - self.record.seconds


class WithoutEpochs(Election):
    """Takes its own old lease again as if it had never lost it."""

    def wanted(self, now: float) -> Record | None:
        found = super().wanted(now)
        again = found is not None and self._seen is not None and self._seen.holder == self._me
        return self._seen if again else found

    def written(self, record: Record, version: int, sent: float, now: float) -> None:
        self._last_epoch = 0
        super().written(record, version, sent, now)


class GivesItselfMore(Election):
    """Goes on after its deadline."""

    def lease(self, now: float) -> Lease | None:
        return super().lease(now - 5.0)


@pytest.mark.parametrize("broken", [FromTheAnswer, SeenLongAgo, WithoutEpochs, GivesItselfMore])
def test_a_weaker_rule_is_caught(broken: Callable[[str, float], Election]) -> None:
    with pytest.raises(Overlap):
        play(broken)


def test_without_the_margin_clocks_of_other_rates_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MARGIN", 0.0)
    with pytest.raises(Overlap):
        play(Election)


def test_no_clock_that_can_be_set_decides_anything() -> None:
    """The time of day is read in one place: for the text that people see."""
    folder = Path(rules.__file__).parent
    for path in folder.glob("*.py"):
        names = [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        assert not [n for n in names if n.startswith("datetime.") or n.endswith((".now", ".utcnow"))]
        assert names.count("time.time") == (path.name == "elector.py")
