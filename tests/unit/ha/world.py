"""A simulated world for the lease: instances with clocks of their own, a store with one document, and a network that
delays, loses and reorders. A seed decides everything."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dblog.ha.lease import Election, Lease, Record

SECONDS = 10.0
DRIFT = 0.04
"""How much the rate of a clock differs from that of the world, at most. `lease.MARGIN` covers it for two clocks."""


class Overlap(AssertionError):
    """Two instances were the leader at once, or an epoch did not grow."""


@dataclass
class Clock:
    """What an instance's clock shows: anything, at nearly the right rate."""

    offset: float
    rate: float

    def at(self, now: float) -> float:
        return self.offset + now * self.rate


@dataclass
class Instance:
    name: str
    clock: Clock
    election: Election
    life: int = 0
    """Grows with each crash: messages for an earlier life are lost."""
    busy: bool = False
    paused_until: float = 0.0
    leases: list[Lease] = field(default_factory=list)


class World:
    def __init__(self, seed: int, election: Callable[[str, float], Election] = Election) -> None:
        self.chance = random.Random(seed)
        self._election = election
        self.now = 0.0
        self.record = Record()
        self.epochs: list[int] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._names = 0
        self.instances = [self._new() for _ in range(3)]
        self.rough = self.chance.random()
        """How often something goes wrong in this world."""

    def _new(self) -> Instance:
        self._names += 1
        clock = Clock(self.chance.uniform(-1e6, 1e6), 1 + self.chance.uniform(-DRIFT, DRIFT))
        name = f"i{self._names}"
        return Instance(name, clock, self._election(name, SECONDS))

    def run(self, seconds: float) -> None:
        for instance in self.instances:
            self._soon(instance, 0.0)
        while self._queue and self.now < seconds:
            self.now, _, act = heapq.heappop(self._queue)
            act()
            self.check()

    def check(self) -> None:
        leaders = [i for i in self.instances if i.election.lease(i.clock.at(self.now)) is not None]
        if len(leaders) > 1:
            raise Overlap(f"at {self.now}: {[i.name for i in leaders]}")

    # -- instances -----------------------------------------------------------------------------------------------

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, act))

    def _soon(self, instance: Instance, seconds: float) -> None:
        life = instance.life
        self._at(self.now + seconds, lambda: self._alive(instance, life, lambda: self._step(instance)))

    def _alive(self, instance: Instance, life: int, act: Callable[[], None]) -> None:
        """Let an instance act, unless it has crashed since; a paused one acts when it wakes up."""
        if instance.life != life:
            return
        if instance.paused_until > self.now:
            self._at(instance.paused_until, lambda: self._alive(instance, life, act))
        else:
            act()

    def _step(self, instance: Instance) -> None:
        if self.chance.random() < 0.01 * self.rough:
            return self._crash(instance)
        if self.chance.random() < 0.05 * self.rough:  # as by SIGSTOP, also between reading the clock and sending
            instance.paused_until = self.now + self.chance.expovariate(1 / SECONDS)
        if self.chance.random() < 0.02 and (freed := instance.election.release()) is not None:
            self._at(self.now + self._delay(), lambda: self._release(freed))
            return self._soon(instance, self.chance.uniform(0, 2 * SECONDS))
        election, local = instance.election, instance.clock.at(self.now)
        if election.must_read:
            return self._send(instance, lambda: self.record, lambda found: self._has_read(instance, found))
        return self._try(instance, local)

    def _has_read(self, instance: Instance, found: Record) -> None:
        instance.election.read(found, instance.clock.at(self.now))
        self._try(instance, instance.clock.at(self.now))

    def _try(self, instance: Instance, local: float) -> None:
        wanted = instance.election.wanted(local)
        if wanted is None:
            return self._rest(instance)
        sent = local
        return self._send(instance, lambda: self._write(wanted), lambda v: self._has_written(instance, wanted, v, sent))

    def _has_written(self, instance: Instance, wanted: Record, version: int, sent: float) -> None:
        local = instance.clock.at(self.now)
        if version == 0:
            instance.election.failed()
        else:
            before = instance.election.lease(local)
            instance.election.written(wanted, version, sent, local)
            lease = instance.election.lease(local)
            if lease is not None and (before is None or before.epoch != lease.epoch):
                if self.epochs and lease.epoch <= self.epochs[-1]:
                    raise Overlap(f"epoch {lease.epoch} after {self.epochs[-1]}")
                self.epochs.append(lease.epoch)
        self._rest(instance)

    def _rest(self, instance: Instance) -> None:
        self._soon(instance, instance.election.pause(instance.clock.at(self.now)) + self.chance.uniform(0.001, 0.1))

    def _crash(self, instance: Instance) -> None:
        fresh = self._new()
        instance.life += 1
        instance.name, instance.clock, instance.election = fresh.name, fresh.clock, fresh.election
        self._soon(instance, self.chance.uniform(0, SECONDS))

    # -- the network and the store -------------------------------------------------------------------------------

    def _delay(self) -> float:
        if self.chance.random() < 0.1 * self.rough:
            return self.chance.expovariate(1 / SECONDS)
        return self.chance.uniform(0.001, 0.05)

    def _send(self, instance: Instance, act: Callable[[], object], answer: Callable[[object], None]) -> None:
        life, lost = instance.life, 0.05 * self.rough
        there, answered = self.now + self._delay(), [False]

        def reply(found: object) -> None:
            if not answered[0]:
                answered[0] = True
                answer(found)

        def give_up() -> None:
            """The time limit of a call: its outcome is unknown, and the request may arrive later."""
            if not answered[0]:
                answered[0] = True
                instance.election.failed()
                self._rest(instance)

        def arrive() -> None:
            found = act()
            if self.chance.random() >= lost:
                self._at(self.now + self._delay(), lambda: self._alive(instance, life, lambda: reply(found)))

        if self.chance.random() >= lost:
            self._at(there, arrive)
        self._at(self.now + SECONDS / 4, lambda: self._alive(instance, life, give_up))

    def _release(self, freed: Record) -> None:
        self._write(freed)

    def _write(self, wanted: Record) -> int:
        """The version of the document after the write; 0 if it was refused."""
        if wanted.version != self.record.version:
            return 0
        self.record = replace(wanted, version=wanted.version + 1)
        return self.record.version
