"""Who asks for leases in a script, and what their owners do."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Generic, TypeVar

import attrs
import trio

from plugind.actors.simulation.lease_owners import MemoryOwnerProcesses
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.messages import Failure, LeasesMessage, Released
from plugind.protocol.leases.values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    NoOwner,
    Owner,
    Pool,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
)
from plugind.tests.fuzz.lease_holders import LABEL, Asking, Holding
from plugind.tests.fuzz.lease_oracle import LeaseOracle
from plugind.tests.fuzz.lease_plugins import GPU, NIC, PIECES, LeasePlugins
from plugind.tests.fuzz.line_oracle import LineOracle

T = TypeVar("T")

#: Who asks: root, and others.
UIDS: Final = (0, 1000, 1001)
#: A piece that is taken only by those who name the pool, which is not for all.
POOLS: Final = (Pool("kept", GPU, frozenset({"d3"}), frozenset({1000})),)
#: The most devices of each user but root, of those that are in no pool.
LIMITS: Final = {GPU: 2}
#: Processes of owners and containers have this pid or a greater one.
FIRST_PID: Final = 4_000_000
#: The names that callers give to leases, and the seconds for which they wait.
_NAMES: Final = (None, None, None, None, None, "job-1", "job-2")
_WAITS: Final = (None, None, 0.5, 5.0, 40.0, 300.0, 300.0)
#: Why a lease is not bound, and was not for a moment.
_UNBOUND: Final = (m.Problem.FORBIDDEN, m.Problem.USAGE, m.Problem.UNKNOWN)


@attrs.frozen(eq=False)
class Reply(Generic[T]):
    """The address of an answer; it is the same for nobody else."""

    _take: Callable[[T], None]

    def send_nowait(self, answer: T, /) -> None:
        """Take the answer."""
        self._take(answer)


@attrs.define(eq=False)
class LeaseCallers:
    """The callers and owners of one script."""

    _oracle: LeaseOracle
    _line: LineOracle
    _processes: MemoryOwnerProcesses
    _plugins: LeasePlugins
    #: Sends a message to the lease actor of the daemon that runs.
    _send: Callable[[LeasesMessage], None]
    _trace: Callable[..., None]
    #: The containers whose hooks wait for an answer, and the leases that they are to have.
    _binding: dict[ProcessIdentity, str] = attrs.field(init=False, factory=dict)
    _tickets: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1_000_000_000))
    _pids: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(FIRST_PID))

    # --- to ask -------------------------------------------------------------------------------------------------------

    def ask(self, chance: random.Random) -> Asking:
        """Let somebody ask for a lease."""
        owner = self._owner(chance)
        request = self._request(chance, container=isinstance(owner, ContainerOwner))
        wait = chance.choice(_WAITS)
        return self.ask_for(request, owner, chance.choice(UIDS), chance.choice(_NAMES), wait)

    def ask_for_one(self, chance: random.Random, *, container: bool) -> None:
        """Let somebody ask for one device."""
        request = Request((Wanted(chance.choice((GPU, NIC)), 1),), container=container)
        self.ask_for(request, ContainerOwner() if container else NoOwner(), wait=60.0)

    def ask_for(
        self, request: Request, owner: Owner, uid: int = 0, name: str | None = None, wait: float | None = None
    ) -> Asking:
        """Let somebody ask for this lease; the request is labeled, unless it is one that was made before."""
        ticket, now = next(self._tickets), trio.current_time()
        if not request.labels:
            request = attrs.evolve(request, labels=((LABEL, str(ticket)),))
        deadline = None if wait is None else now + wait
        asking = Asking(ticket, request, owner, uid, now, name, deadline, self._oracle.answered)
        self._trace("lease", "ask", ticket, _words(request), type(owner).__name__, uid, name, wait)
        self._oracle.asks(asking)
        self._line.asks(asking)
        self._send(m.LeaseAsked(request, owner, uid, ticket, asking, name, deadline))
        return asking

    def _request(self, chance: random.Random, *, container: bool) -> Request:
        if chance.random() < 0.15:
            wanted = (Wanted(GPU, chance.choice((1, 2))), Wanted(NIC, chance.choice((1, 2))))
            return Request(wanted[:: chance.choice((1, -1))], container=container)
        resource = chance.choice((GPU, GPU, NIC))
        count = chance.choice((1, 1, 1, 1, 1, 2, 2, 3, 5))
        request = Request((Wanted(resource, count),), container=container)
        some = chance.sample(self._plugins.ids(resource), min(count, PIECES[resource]))
        match chance.randrange(8):
            case 0 if len(some) == count:
                return attrs.evolve(request, ids=tuple(some))
            case 1:
                return attrs.evolve(request, include=tuple(some[:1]))
            case 2 if resource == GPU:
                return attrs.evolve(request, pool="kept")
            case _:
                return request

    def _owner(self, chance: random.Random) -> Owner:
        match chance.randrange(8):
            case 0:
                return NoOwner()
            case 1 | 2:
                return TimeOwner(chance.choice((1.0, 10.0, 100.0)))
            case 3 | 4:
                return ContainerOwner()
            case 5:
                return ConnectionOwner(f"token {chance.getrandbits(32)}")
            case _ if self._running() and chance.random() < 0.3:
                # One that has other leases as well.
                return ProcessOwner(self._processes.identity(chance.choice(self._running())))
            case _:
                return ProcessOwner(self._processes.start(next(self._pids)))

    def ask_again(self, chance: random.Random) -> None:
        """Let somebody ask once more for a lease with a name, mostly for the same."""
        askings = self._oracle.askings.values()
        # The lease of a connection would have two.
        named = [
            asking for asking in askings if asking.id is not None and not isinstance(asking.owner, ConnectionOwner)
        ]
        if not named:
            return
        asking = chance.choice(named)
        request = asking.request
        if chance.random() < 0.2:
            request = attrs.evolve(request, labels=(), wanted=(Wanted(GPU, 1),), ids=(), include=(), pool=None)
        uid = chance.choice((asking.uid, asking.uid, asking.uid, *UIDS))
        self.ask_for(request, asking.owner, uid, asking.id, chance.choice(_WAITS))

    def leave(self, chance: random.Random) -> None:
        """Let a caller leave: mostly one that waits, or one that has its answer, which did not reach it."""
        asking = _choice(chance, [asking for asking in self._oracle.askings.values() if asking.waits])
        if asking is None or chance.random() < 0.2:
            answered = [holding.asking for holding in self._oracle.holdings.values() if holding.ended is None]
            asking = _choice(chance, [asking for asking in answered if not asking.left]) or asking
        if asking is not None:
            self._trace("lease", "leave", asking.ticket)
            self._oracle.leaves(asking)
            self._send(m.AskerLeft(asking.ticket))

    # --- what owners do -----------------------------------------------------------------------------------------------

    def release(self, chance: random.Random) -> None:
        """Let somebody release a lease: mostly its owner or root, and mostly one that is there."""
        holding = self._holding(chance)
        if holding is None:
            self.release_lease(chance.choice(("job-1", "job-2", "nothing")), 0)
        else:
            self.release_lease(holding.lease.id, chance.choice((0, holding.lease.uid, *UIDS)))

    def release_lease(self, lease: str, uid: int) -> None:
        """Let this user release this lease."""
        holding = self._oracle.holdings.get(lease)
        # A recovery that was not written in time may be in force since a restart.
        sure = holding is not None and self._oracle.is_sure(holding) and not self._oracle.recovers
        self._oracle.releases(lease, uid)
        answered = partial(self._oracle.release_answered, lease, uid, sure=sure)
        self._send(m.ReleaseAsked((lease,), uid, Reply[Released | Failure](answered)))

    def renew(self, chance: random.Random) -> None:
        """Let the owner of a lease that ends at a time renew it."""
        holding = self._holding(chance, TimeOwner)
        if holding is not None:
            lease = holding.lease
            assert isinstance(lease.owner, TimeOwner)
            self._oracle.renews(holding, lease.owner.seconds)
            self._send(m.RenewAsked(lease.id, lease.uid, Reply[Lease | Failure](self._renewed)))

    def _renewed(self, answer: Lease | Failure) -> None:
        if isinstance(answer, Lease):
            self._oracle.renewed(answer)

    def start_container(self, chance: random.Random) -> None:
        """Let a container start with a lease, for the first time or again; or another one with the same lease."""
        holding = self._holding(chance, ContainerOwner)
        if holding is not None:
            uid = chance.choice((0, holding.lease.uid))
            for _ in range(chance.choice((1, 1, 2))):
                self._bind(holding.lease.id, uid)

    def _bind(self, lease: str, uid: int) -> None:
        init = self._processes.start(next(self._pids))
        self._trace("lease", "bind", lease, init.pid)
        self._binding[init] = lease
        self._oracle.binds(lease)
        self._send(m.BindAsked(lease, uid, init, Reply[Lease | Failure](partial(self._bound, lease, init))))

    def _bound(self, lease: str, init: ProcessIdentity, answer: Lease | Failure) -> None:
        self._trace("lease", "bound", init.pid, answer.text if isinstance(answer, Failure) else answer.id)
        self._binding.pop(init, None)
        if lease not in self._binding.values():
            self._oracle.bind_answered(lease)
        if isinstance(answer, Lease):
            self._oracle.bound(answer, init)
        else:
            self._fail_to_start(lease, init, sure=answer.problem in _UNBOUND)

    def _fail_to_start(self, lease: str, init: ProcessIdentity, *, sure: bool) -> None:
        """The hook fails, and the container does not start; ``sure`` says whether the lease is surely not bound."""
        self.end(init)
        if not sure:
            self._oracle.not_bound(lease)

    def daemon_ended(self) -> None:
        """The daemon has ended: hooks that wait for an answer fail."""
        binding, self._binding = self._binding, {}
        for init, lease in binding.items():
            self._oracle.bind_answered(lease)
            self._fail_to_start(lease, init, sure=False)

    def end_owner(self, chance: random.Random) -> None:
        """End the process of an owner, or of a container; or one that owns nothing."""
        if pids := self._running():
            self.end(self._processes.identity(chance.choice(pids)))

    def _running(self) -> list[int]:
        return [pid for pid in self._processes.running if pid >= FIRST_PID]

    def end(self, process: ProcessIdentity) -> None:
        """End this process, if it runs."""
        if self._processes.runs(process):
            self._trace("lease", "end", process.pid)
            if (lease := self._binding.get(process)) is not None:
                # The daemon may bind the lease to a process that has ended, and end it.
                self._oracle.not_bound(lease)
            self._oracle.process_ended(process)
            self._processes.end(process.pid)

    def resume(self, chance: random.Random) -> None:
        """Let the owner of a lease come back with its token, after a restart of the daemon."""
        holding = self._holding(chance, ConnectionOwner)
        if holding is None or holding.until == math.inf:
            return
        owner = holding.lease.owner
        assert isinstance(owner, ConnectionOwner)
        lease, first = holding.lease, holding.asking
        asking = attrs.evolve(first, ticket=next(self._tickets), answer=lease, left=False)
        reply = Reply[Lease | Failure](partial(self._resumed, asking))
        self._send(m.ResumeAsked(lease.id, lease.uid, owner.token_hash, asking.ticket, reply))

    def _resumed(self, asking: Asking, answer: Lease | Failure) -> None:
        if isinstance(answer, Lease):
            self._oracle.resumed(answer, asking)

    def _holding(self, chance: random.Random, kind: type[Owner] | None = None) -> Holding | None:
        holdings = [
            holding
            for holding in self._oracle.holdings.values()
            if holding.ended is None and (kind is None or isinstance(holding.lease.owner, kind))
        ]
        return _choice(chance, holdings)

    # --- at rest ------------------------------------------------------------------------------------------------------

    def release_all(self) -> None:
        """Let root release all leases."""
        for lease in [*self._oracle.shown.values()]:
            if lease.state is not LeaseState.UNCERTAIN:
                self.release_lease(lease.id, 0)


def _choice(chance: random.Random, items: list[T]) -> T | None:
    return chance.choice(items) if items else None


def _words(request: Request) -> str:
    wanted = ",".join(f"{each.resource}={each.count}" for each in request.wanted)
    return f"{wanted} ids={request.ids} include={request.include} pool={request.pool}"
