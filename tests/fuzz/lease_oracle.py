"""What must hold of leases, by what callers are told, owners do, and the store has.

An owner has its devices from the answer on until it ends or gives them up. Whatever the node does meanwhile, crashes
and restarts included, the lease is there, and its devices are nobody else's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from plugind.actors.leases.actor import CRASHED
from plugind.actors.simulation.lease_owners import MemoryBootClock, MemoryOwnerProcesses
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.leases.messages import Failure, LeasesSnapshot, Released
from plugind.protocol.leases.values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
)
from plugind.tests.fuzz.lease_holders import LABEL, Asking, Holding, things, words
from plugind.tests.fuzz.lease_stores import SimulatedCdiStore, SimulatedLeaseStore
from plugind.tests.fuzz.preparation_oracle import PreparationOracle

#: Seconds for a container to bind its lease, or for a connection to come back; until the lease of a container ends that
#: has ended; and for which the devices of an uncertain lease are withheld.
BIND: Final = 60.0
GRACE: Final = 10.0
WITHHELD: Final = 60.0
#: Seconds that may pass from the end of an owner until its lease has ended.
SOON: Final = 3.0
#: Seconds after which a message that was sent to the lease actor was taken, whatever has crashed.
_TAKEN: Final = 30.0
#: Seconds that all plugins of a request may need in all to prefer and prepare devices, behind all others in line.
PREPARED: Final = 700.0


class LeaseOracle:
    """A lease that somebody was told of is there until its owner ends, and no device of it is anybody else's."""

    def __init__(
        self,
        violated: Callable[[str, str], None],
        trace: Callable[..., None],
        store: SimulatedLeaseStore,
        files: SimulatedCdiStore,
        processes: MemoryOwnerProcesses,
        clock: MemoryBootClock,
        preparations: PreparationOracle,
        pieces: Mapping[str, int],
    ) -> None:
        self._violated = violated
        self._trace = trace
        self._store = store
        self._files = files
        self._processes = processes
        self._clock = clock
        self._preparations = preparations
        self._pieces = pieces
        #: Called when somebody is told of a lease.
        self.on_told: Callable[[], None] = lambda: None
        self.askings: dict[int, Asking] = {}
        #: By the id of the lease.
        self.holdings: dict[str, Holding] = {}
        #: What is shown now, and since when it is in its state.
        self.shown: dict[str, Lease] = {}
        self._since: dict[str, float] = {}
        #: Why no device is given to anybody; and whether the leases of the daemon that runs are known.
        self.withheld: str | None = None
        self.is_known = False
        #: When the daemon that runs was started, and when it has shown its leases first.
        self._started = self._known_since = 0.0
        #: Whether an operator has said that nothing is in use that is not known, and was not answered yet.
        self.recovers = False
        #: Leases of earlier boots.
        self._of_earlier_boots: set[str] = set()
        #: The releases that were not answered yet, each with the user who asks.
        self._releasing: list[tuple[str, int]] = []
        #: When the lease actor was last known to be late for a reason.
        self._disturbed = 0.0
        #: Whether a request ignored devices that are not listed, so that more may be held than there are.
        self._ignored: set[str] = set()

    # --- what callers do ----------------------------------------------------------------------------------------------

    def asks(self, asking: Asking) -> None:
        """A caller asks for a lease."""
        self.askings[asking.ticket] = asking
        if asking.id is not None:
            self._of_earlier_boots.discard(asking.id)
        if asking.request.ignore_missing:
            self._ignored.update(wanted.resource for wanted in asking.request.wanted)

    def answered(self, asking: Asking, answer: Lease | Failure) -> None:
        """A caller is answered."""
        now = trio.current_time()
        said = words(answer) if isinstance(answer, Lease) else f"{answer.problem} {answer.text}"
        self._trace("lease", "answer", asking.ticket, said)
        if asking.answer is not None:
            self._violated("asked", f"{asking.ticket} is answered twice: {said}")
        if asking.left:
            return
        asking.answer, asking.answered = answer, now
        if isinstance(answer, Lease):
            self._check_answer(asking, answer)
            self._tell(asking, answer)
            self.on_told()

    def _tell(self, asking: Asking, lease: Lease) -> None:
        holding = self.holdings.get(lease.id)
        if holding is not None and self.is_sure(holding):
            if holding.lease.devices != lease.devices or holding.lease.answer != lease.answer:
                self._violated("told", f"{words(lease)} was told of with {holding.lease.devices} before")
            return
        if holding is not None and holding.lease.created == lease.created:
            return
        for other in self.holdings.values():
            both = holding is not other and self.is_sure(other) and things(lease) & other.things()
            if both:
                self._violated("twice", f"{sorted(both)} are of {words(lease)}, and of {words(other.lease)}")
        until = self._held_since(lease) + BIND if isinstance(lease.owner, ContainerOwner) else math.inf
        new = self.holdings[lease.id] = Holding(lease, asking, until=until)
        if isinstance(lease.owner, ProcessOwner) and not self._processes.runs(lease.owner.process):
            new.ended, new.is_over, new.released = trio.current_time(), True, True
        if any(uid in (0, lease.uid) for name, uid in self._releasing if name == lease.id):
            self._end(new)
        self._check_pieces(lease)

    def _held_since(self, lease: Lease) -> float:
        """Return when the minute of a container began, at the earliest: when the lease was held.

        That may have been long ago: whoever has asked for it by name first may have left before it was told.
        """
        shown = self.shown.get(lease.id)
        if shown is None or shown.state is not LeaseState.HELD:
            return trio.current_time()
        since = self._since[lease.id]
        # The daemon has taken up what it shows first at some time since its start.
        return since if since > self._known_since else self._started

    def _check_pieces(self, lease: Lease) -> None:
        for resource in lease.devices:
            sure = [holding for holding in self.holdings.values() if self.is_sure(holding)]
            held = sum(len(holding.lease.devices.get(resource, ())) for holding in sure)
            if held > self._pieces[resource] and resource not in self._ignored:
                self._violated(
                    "twice", f"{held} devices of {resource} are held, and there are {self._pieces[resource]}"
                )

    def _check_answer(self, asking: Asking, lease: Lease) -> None:
        request, written = asking.request, self._store.leases.get(lease.id)
        if written is None and not self._store.noticed and self._was_told(lease):
            # Nothing is written for whoever asks again by its name, so nobody has noticed yet that the file was lost.
            written = lease
        if lease.state is not LeaseState.HELD or lease.answer is None:
            self._violated("told", f"{asking.ticket} is told of {words(lease)}, which is not held")
        elif written is None or written.state is not LeaseState.HELD or things(written) != things(lease):
            self._violated("told", f"{asking.ticket} is told of {words(lease)}, and written is {written}")
        elif request.container and lease.cdi_name not in self._files.files and lease.id not in self.holdings:
            self._violated("told", f"{asking.ticket} is told of {words(lease)}, which has no file")
        else:
            self._check_devices(request, lease)
            for resource, devices in lease.devices.items():
                if lease.answer.env.get(resource.rpartition("/")[2].upper()) != ",".join(devices):
                    self._violated("told", f"{words(lease)} has the answer {lease.answer}")

    def _was_told(self, lease: Lease) -> bool:
        """Whether somebody was told of this lease before, and it is there for sure."""
        holding = self.holdings.get(lease.id)
        return holding is not None and holding.lease.created == lease.created and self.is_sure(holding)

    def _check_devices(self, request: Request, lease: Lease) -> None:
        wanted = {each.resource: each.count for each in request.wanted}
        named = set(request.ids or request.include)
        if {name: len(set(devices)) for name, devices in lease.devices.items()} != wanted or not named <= {
            device for devices in lease.devices.values() for device in devices
        }:
            self._violated("told", f"{words(lease)} has other devices than {request}")

    def leaves(self, asking: Asking) -> None:
        """A caller leaves: before its answer, which it may not get any more, or a moment after it."""
        asking.left = True
        holding = None if not isinstance(asking.answer, Lease) else self.holdings.get(asking.answer.id)
        if holding is not None and (asking.id is None or isinstance(holding.lease.owner, ConnectionOwner)):
            self._end(holding)
            holding.released = True

    def releases(self, lease: str, uid: int) -> None:
        """Somebody asks that a lease be released, of which perhaps nobody was told yet."""
        self._releasing.append((lease, uid))
        holding = self.holdings.get(lease)
        if holding is not None and uid in (0, holding.lease.uid):
            self._end(holding)

    def release_answered(self, lease: str, uid: int, answer: Released | Failure, *, sure: bool) -> None:
        """What came of that; ``sure`` says whether the lease was there for sure when it was asked for."""
        if (lease, uid) in self._releasing:
            self._releasing.remove((lease, uid))
        self._trace("lease", "release", lease, answer)
        holding = self.holdings.get(lease)
        if holding is None:
            return
        if isinstance(answer, Failure):
            # After a crash nobody knows what was asked: the lease has ended, and that may not be written yet.
            if uid in (0, holding.lease.uid) and answer.text != CRASHED:
                self._violated("freed", f"{words(holding.lease)} was not released: {answer.text}")
        elif lease in answer.released:
            if uid not in (0, holding.lease.uid):
                self._violated("told", f"{words(holding.lease)} was released by user {uid}")
            holding.released = True
        elif sure and self.withheld is None:
            self._violated("told", f"{words(holding.lease)} was not there when it was released")

    def _end(self, holding: Holding) -> None:
        if holding.ended is None:
            holding.ended = trio.current_time()

    # --- what owners do -----------------------------------------------------------------------------------------------

    def process_ended(self, process: ProcessIdentity) -> None:
        """A process has ended."""
        now = trio.current_time()
        for holding in self.holdings.values():
            match holding.lease.owner:
                case ProcessOwner(process=owner) if owner == process:
                    if not holding.released:
                        # Also if it was released before, and the daemon was killed before it knew.
                        holding.ended = now
                    holding.is_over = holding.released = True
                case ContainerOwner(init=owner) if owner == process:
                    # Until then it ends only for a request that needs its devices.
                    holding.until, holding.unsure_since = now + GRACE, now
                case _:
                    pass

    def binds(self, lease: str) -> None:
        """A container asks for the lease in time; a slow disk may delay the answer beyond that time."""
        holding = self.holdings.get(lease)
        if holding is not None and trio.current_time() < holding.until:
            holding.may_bind = trio.current_time() + _TAKEN

    def bind_answered(self, lease: str) -> None:
        """No container waits for the lease any more."""
        holding = self.holdings.get(lease)
        if holding is not None:
            holding.may_bind = min(holding.may_bind, trio.current_time())

    def bound(self, lease: Lease, init: ProcessIdentity) -> None:
        """The hook of a container was told that the lease is bound to this init."""
        holding = self.holdings.get(lease.id)
        if holding is None or holding.ended is not None:
            return
        before = holding.lease.owner.init if isinstance(holding.lease.owner, ContainerOwner) else None
        if before is not None and before != init and self._processes.runs(before):
            self._violated("bound", f"{words(holding.lease)} is bound to {init}, and was bound to {before}, which runs")
        holding.lease = attrs.evolve(holding.lease, owner=ContainerOwner(init))
        now, runs = trio.current_time(), self._processes.runs(init)
        # The grace of one that has ended began then, and may be over.
        holding.until = math.inf if runs else now + GRACE
        holding.unsure_since = math.inf if runs else now

    def not_bound(self, lease: str) -> None:
        """Whether a lease was bound is not known: its container does not start."""
        holding = self.holdings.get(lease)
        if holding is not None:
            # It is there until then: what could not be written leaves the time for a container as it was.
            holding.unsure_since = min(holding.unsure_since, trio.current_time())

    def renews(self, holding: Holding, seconds: float) -> None:
        """The owner asks that the time of its lease begin again; it may never learn whether it has."""
        holding.may_last = self._clock.now() + (seconds + _TAKEN) * 1e9

    def renewed(self, lease: Lease) -> None:
        """The owner was told that the time of its lease has begun again."""
        holding = self.holdings.get(lease.id)
        if holding is not None:
            holding.lease, holding.may_last = attrs.evolve(holding.lease, owner=lease.owner), 0.0

    def resumed(self, lease: Lease, asking: Asking) -> None:
        """The owner is at another connection."""
        holding = self.holdings.get(lease.id)
        self.askings[asking.ticket] = asking
        if holding is not None and holding.ended is None:
            holding.until, holding.asking = math.inf, asking

    def is_sure(self, holding: Holding) -> bool:
        """Whether the lease is there for sure, and its owner's alone."""
        if holding.ended is not None or trio.current_time() >= min(holding.until, holding.unsure_since) - EPSILON:
            return False
        owner = holding.lease.owner
        return not isinstance(owner, TimeOwner) or self._clock.now() < (owner.expires or 0)

    # --- what the node does -------------------------------------------------------------------------------------------

    def disturbed(self, pause: float = 0.0) -> None:
        """The lease actor may be late for so many seconds; what was refused just now may not have arrived."""
        now = trio.current_time()
        self._disturbed = max(self._disturbed, now + pause)
        refusals = self._preparations.refusals
        for thing in [thing for thing, time in refusals.items() if now < time + SOON]:
            del refusals[thing]

    def daemon_ended(self) -> None:
        """The daemon has ended: nobody waits for an answer of it."""
        self.is_known, self.withheld = False, None
        self.shown.clear()
        self._releasing.clear()
        self._since.clear()
        for asking in self.askings.values():
            asking.left = True
        for holding in self.holdings.values():
            # Whether that was written is not known.
            holding.released = holding.is_over
        self.disturbed()

    def daemon_starts(self) -> None:
        """The daemon starts: connections have some time to come back."""
        self._started = trio.current_time()
        for holding in self.holdings.values():
            if isinstance(holding.lease.owner, ConnectionOwner):
                holding.until = trio.current_time() + BIND
        self.disturbed(SOON)

    def rebooted(self) -> None:
        """The machine has booted: all leases are gone."""
        self._of_earlier_boots |= {*self._store.leases, *self.holdings}
        for holding in self.holdings.values():
            self._end(holding)

    def recovered(self) -> None:
        """An operator has said that no device of a lease is in use that is not known."""
        self._preparations.recovered()
        for holding in self.holdings.values():
            if holding.lease.id not in self._store.leases:
                self._end(holding)

    # --- what is shown ------------------------------------------------------------------------------------------------

    def snapshot(self, snapshot: LeasesSnapshot) -> None:
        """All leases are shown."""
        if not self.is_known:
            self._known_since = trio.current_time()
        self.withheld, self.is_known = snapshot.withheld, True
        now_shown = {lease.id: lease for lease in snapshot.leases}
        for gone in self.shown.keys() - now_shown.keys():
            self._forget(gone)
        for lease in snapshot.leases:
            self.look(lease)
        if self.withheld is not None:
            self.disturbed()
            return
        if self.recovers:
            # The daemon may end before it has answered.
            self.recovers = False
            self.recovered()
        for holding in self.holdings.values():
            if holding.lease.id not in now_shown and self.is_sure(holding):
                self._violated("told", f"{words(holding.lease)} is not shown any more")
                self._end(holding)

    def look(self, lease: Lease) -> None:
        """A lease is shown as it is now."""
        before, holding = self.shown.get(lease.id), self.holdings.get(lease.id)
        if before is None or before.state is not lease.state:
            self._since[lease.id] = trio.current_time()
            self._trace("lease", "shown", words(lease), lease.reason)
        is_held = holding is not None and lease.state is LeaseState.HELD and things(lease) == holding.things()
        if holding is not None and self.is_sure(holding) and not is_held:
            self._violated("told", f"{words(holding.lease)} is {words(lease)}: {lease.reason}")
            self._end(holding)
        if lease.id in self._of_earlier_boots:
            self._violated("boot", f"{words(lease)} is of an earlier boot")
            self._of_earlier_boots.discard(lease.id)
        if lease.state is LeaseState.GONE:
            if holding is not None:
                self._end(holding)
            self._forget(lease.id)
            # It was refused to this lease: another one may have such a device pending in the same instant.
            for thing in things(lease):
                self._preparations.refusals.pop(thing, None)
        else:
            self.shown[lease.id] = lease

    def _forget(self, lease: str) -> None:
        self.shown.pop(lease, None)
        self._since.pop(lease, None)

    # --- what time shows ----------------------------------------------------------------------------------------------

    def check(self, crashed_at: float) -> None:
        """Check what must have happened by now; an actor crashed last at ``crashed_at``."""
        self._preparations.crashed(crashed_at)
        if not self.is_known or self.withheld is not None:
            return
        now = trio.current_time()
        self._check_twice()
        for holding in self.holdings.values():
            shown = self.shown.get(holding.lease.id)
            if shown is None or shown.state is not LeaseState.HELD or shown.created != holding.lease.created:
                continue  # It may have a successor of its name.
            if now > self._gone_by(holding) + EPSILON:
                self._violated("freed", f"{words(shown)} is shown, and its owner has ended")
                holding.ended = math.inf
        for lease in [*self.shown.values()]:
            since = max(self._since[lease.id], self._disturbed)
            if lease.state is LeaseState.UNCERTAIN and now > since + WITHHELD + SOON:
                self._violated("uncertain", f"{words(lease)} is so since {since:g}")
                self._since[lease.id] = math.inf
            self._check_refused(lease, now)
        for asking in self.askings.values():
            if asking.waits:
                self._check_deadline(asking, now)

    def _check_twice(self) -> None:
        counts = Counter(thing for lease in self.shown.values() for thing in things(lease))
        for thing, count in counts.items():
            if count > 1:
                self._violated("twice", f"{thing} is shown in {count} leases")

    def _gone_by(self, holding: Holding) -> float:
        """Return when the lease of an owner that has ended must be gone; infinity if it has not."""
        owner = holding.lease.owner
        # A daemon counts from when it knows the lease, which a slow disk may tell it late.
        disturbed = max(self._disturbed, self._since.get(holding.lease.id, -math.inf))
        if holding.ended is not None:
            return max(holding.ended, disturbed) + SOON if holding.released else math.inf
        match owner:
            case ContainerOwner(init=None):
                return max(holding.until, holding.may_bind, disturbed + BIND) + SOON
            case ContainerOwner():
                return max(holding.until, holding.may_bind, disturbed + GRACE) + SOON
            case ConnectionOwner():
                return max(holding.until, disturbed + BIND) + SOON
            case TimeOwner():
                over = (self._clock.now() - max(owner.expires or 0, holding.may_last)) / 1e9
                return max(trio.current_time() - over, disturbed) + SOON
            case _:
                return math.inf

    def _check_refused(self, lease: Lease, now: float) -> None:
        if lease.state not in (LeaseState.PENDING, LeaseState.UNCERTAIN):
            return
        refused = [
            self._preparations.refusals[device] for device in things(lease) if device in self._preparations.refusals
        ]
        since = self._since[lease.id]
        times = [time for time in refused if time >= since and max(time, self._disturbed) + SOON < now]
        asking = self._asking_of(lease)
        failed = asking is not None and isinstance(asking.answer, Failure) and lease.state is LeaseState.PENDING
        # One whose owner has ended is pending until its plugin has answered.
        if times or (failed and asking is not None and (asking.answered or now) + PREPARED < now):
            self._violated("refused", f"{words(lease)} is shown, and was refused")
            for thing in things(lease):
                self._preparations.refusals.pop(thing, None)

    def _asking_of(self, lease: Lease) -> Asking | None:
        """Return who has asked first for a lease that nobody can ask for again by name."""
        asking = self.askings.get(int(dict(lease.request.labels).get(LABEL, "0")))
        return asking if asking is not None and asking.id is None else None

    def _check_deadline(self, asking: Asking, now: float) -> None:
        shown = next(
            (lease for lease in self.shown.values() if lease.request == asking.request and lease.uid == asking.uid),
            None,
        )
        due = max(asking.deadline or 0.0, asking.asked, self._disturbed) + SOON
        if shown is not None and shown.state is not LeaseState.QUEUED:
            due += PREPARED
        if now > due:
            self._violated("asked", f"{asking.ticket} is not answered, and its lease is shown as {shown}")
            asking.left = True
