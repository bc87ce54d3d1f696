"""What the log says of leases: that one was granted, has ended, or is uncertain, and that a caller got none."""

from __future__ import annotations

from collections.abc import Callable

from ...protocol.leases.drains import sorted_drains
from ...protocol.leases.effects import Failed, ShowDrain, StopOwner
from ...protocol.leases.messages import Kept, Problem
from ...protocol.leases.values import Lease, LeaseState, process_of
from ...protocol.logs.lines import Level, Logger, timestamp
from ...protocol.text import cut

#: The failures that somebody should look into; the others are answers like any other.
_BAD = (Problem.REFUSED, Problem.STORAGE)

#: How many characters of the labels of a lease are logged.
MAX_LABELS = 256
_MISSING_ADVICE = (
    "see the log of the plugin if there is one; 'plugind release' ends the lease if the devices were taken out"
)
_OVERDUE_ADVICE = "it ends with its owner; 'plugind release' ends it before, and stop_at_longest stops such owners"
OWNERS_RUN = "their owners run, so the boot id has changed without a reboot: a setting of the service may hide it"


class LeaseLog:
    """Writes a line when the owner of devices is another one."""

    def __init__(self, log: Logger, wall: Callable[[], float]) -> None:
        """Write to ``log``; ``wall`` returns Unix seconds."""
        self.log = log
        self._wall = wall
        #: When each lease was granted; of those of before a restart, when it was asked for.
        self._granted: dict[str, float] = {}

    def keep(self, kept: Kept) -> None:
        """Note the leases of before a restart, which were granted then."""
        if kept.withheld is not None:
            self.log.event(Level.ERROR, "all devices are withheld", reason=kept.withheld)
        if kept.problem is not None:
            self.log.event(Level.ERROR, "drains may be lost", reason=kept.problem)
        if kept.drains:
            targets = ",".join(drain.target.words for drain in sorted_drains(kept.drains))
            self.log.event(Level.WARNING, "drains are kept", drained=cut(targets, MAX_LABELS))
        held = [lease for lease in kept.leases if lease.state is LeaseState.HELD]
        for lease in held:
            self._granted.setdefault(lease.id, lease.created)
        if held:
            self.log.event(Level.INFO, "leases are kept", leases=len(held))

    def show_other_boot(self, kept: Kept) -> None:
        """Write which leases ended with another boot, and whether some are kept although the boot id is another."""
        for lease in kept.ended:
            if lease.state is LeaseState.HELD:
                self._granted[lease.id] = lease.created
            self.show(lease, lease.moved(LeaseState.GONE, lease.reason))
        if kept.moved:
            self.log.event(Level.WARNING, "leases of another boot are kept", leases=kept.moved, reason=OWNERS_RUN)

    def show(self, shown: Lease | None, lease: Lease) -> None:
        """Write how the lease is now, if its devices have got or lost an owner, or were lost themselves."""
        before = None if shown is None else shown.state
        if shown is not None and lease.state is before:
            self._show_devices(shown, lease)
            return
        match lease.state:
            case LeaseState.HELD:
                self._granted[lease.id] = self._wall()
                self._note(Level.INFO, "lease is granted", lease)
                for warning in lease.warnings:
                    self._note(Level.WARNING, "lease has less than its plugin said", lease, warning)
            case LeaseState.UNCERTAIN:
                self._note(Level.WARNING, "lease is uncertain", lease, lease.reason)
            case LeaseState.GONE if before in (LeaseState.HELD, LeaseState.UNCERTAIN):
                granted = self._granted.pop(lease.id, None)
                held = None if granted is None else round(max(0.0, self._wall() - granted), 3)
                self._note(Level.INFO, "lease has ended", lease, lease.reason, held)
            case _:
                pass

    def _show_devices(self, before: Lease, lease: Lease) -> None:
        if lease.state is not LeaseState.HELD:
            return
        if lease.overdue and not before.overdue:
            self._note(Level.WARNING, "lease is overdue", lease, "its longest time is over", advice=_OVERDUE_ADVICE)
        if lease.reason == before.reason:
            return
        if lease.reason is None:
            self._note(Level.INFO, "leased devices are listed again", lease)
        else:
            self._note(Level.WARNING, "leased devices are missing", lease, lease.reason, advice=_MISSING_ADVICE)

    def _note(
        self,
        level: Level,
        text: str,
        lease: Lease,
        reason: str | None = None,
        held: float | None = None,
        advice: str | None = None,
    ) -> None:
        if not self.log.enabled(level):
            return
        process = process_of(lease.owner)
        devices = ";".join(f"{name}={','.join(ids)}" for name, ids in lease.devices.items())
        labels = cut(",".join(f"{key}={word}" for key, word in lease.request.labels), MAX_LABELS) or None
        self.log.event(
            level,
            text,
            lease=lease.id,
            user=lease.uid,
            pid=None if process is None else process.pid,
            devices=devices,
            labels=labels,
            seconds=held,
            reason=reason,
            advice=advice,
        )

    def show_drain(self, shown: ShowDrain) -> None:
        """Write that something is drained, or no longer."""
        drain = shown.drain
        until = None if drain.until is None else timestamp(drain.until)
        target, reason = drain.target.words, drain.reason or None
        if shown.ended is None:
            text = "devices are drained"
            self.log.event(Level.WARNING, text, drained=target, user=drain.uid, until=until, reason=reason)
        else:
            self.log.event(Level.INFO, "a drain has ended", drained=target, reason=shown.ended)

    def stop(self, effect: StopOwner) -> None:
        """Write that the process of an owner was sent SIGTERM."""
        pid = effect.process.pid
        self.log.event(
            Level.WARNING, "owner is stopped", lease=effect.id, user=effect.uid, pid=pid, reason=effect.reason
        )

    def fail_to_stop(self, effect: StopOwner, error: OSError) -> None:
        """Write that it could not be sent SIGTERM."""
        pid, cause = effect.process.pid, error.strerror
        text = "owner cannot be stopped"
        self.log.event(
            Level.WARNING, text, lease=effect.id, user=effect.uid, pid=pid, reason=effect.reason, error=cause
        )

    def fail(self, failed: Failed) -> None:
        """Write that a caller got no lease."""
        level = Level.WARNING if failed.failure.problem in _BAD else Level.INFO
        resources = ",".join(failed.resources)
        self.log.event(level, "no lease is given", user=failed.uid, resources=resources, reason=failed.failure.text)
