"""What the log says of leases: that one was granted, has ended, or is uncertain, and that a caller got none.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from ...protocol.leases.effects import Failed, StopOwner
from ...protocol.leases.messages import Kept, Problem
from ...protocol.leases.values import Lease, LeaseState
from ...protocol.logs import Level, Logger

#: The failures that somebody should look into; the others are answers like any other.
_BAD = (Problem.REFUSED, Problem.STORAGE)


class LeaseLog:
    """Writes a line when the owner of devices is another one."""

    def __init__(self, log: Logger) -> None:
        self.log = log

    def keep(self, kept: Kept) -> None:
        """Note the leases of before a restart, which were granted then."""
        if kept.withheld is not None:
            self.log.event(Level.ERROR, "all devices are withheld", reason=kept.withheld)
        held = sum(lease.state is LeaseState.HELD for lease in kept.leases)
        if held:
            self.log.event(Level.INFO, "leases are kept", leases=held)

    def show(self, before: LeaseState | None, lease: Lease) -> None:
        """Write how the lease is now, if its devices have got or lost an owner."""
        if lease.state is before:
            return
        match lease.state:
            case LeaseState.HELD:
                self._note(Level.INFO, "lease is granted", lease)
            case LeaseState.UNCERTAIN:
                self._note(Level.WARNING, "lease is uncertain", lease, lease.reason)
            case LeaseState.GONE if before in (LeaseState.HELD, LeaseState.UNCERTAIN):
                self._note(Level.INFO, "lease has ended", lease, lease.reason)
            case _:
                pass

    def _note(self, level: Level, text: str, lease: Lease, reason: str | None = None) -> None:
        if self.log.enabled(level):
            devices = ";".join(f"{name}={','.join(ids)}" for name, ids in lease.devices.items())
            self.log.event(level, text, lease=lease.id, user=lease.uid, devices=devices, reason=reason)

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
