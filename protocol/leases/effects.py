"""What follows from a message to the lease actor: the actor carries these out, in order."""

from __future__ import annotations

from typing import Generic, TypeVar

from ..messages.addresses import Address
from ..plugins.devices import Key
from ..values import value
from .drains import Drain, DrainTarget
from .messages import DeviceCall, Failure, InLine, PluginCall, Released
from .values import Lease, Owner, ProcessIdentity

AnswerT = TypeVar("AnswerT")


@value
class AnswerAsker(Generic[AnswerT]):
    """Answer a caller. If it cannot be delivered, :class:`~.messages.AskerLeft` follows."""

    reply: Address[AnswerT]
    answer: AnswerT

    def send(self) -> None:
        """Put the answer into the caller's inbox."""
        self.reply.send_nowait(self.answer)


LeaseReply = AnswerAsker[Lease | Failure]
ReleaseReply = AnswerAsker[Released | Failure]
RecoverReply = AnswerAsker[Failure | None]
DrainReply = AnswerAsker[Drain | Failure]


@value
class TellPlace:
    """Tell a caller where in line it is."""

    progress: Address[InLine]
    place: InLine


@value
class CallPlugin:
    """Call a device plugin."""

    calls: Address[DeviceCall]
    call: PluginCall


@value
class Withdraw:
    """Have a call of this lease not made, if it waits in line yet; it is answered as one that was not made."""

    calls: Address[DeviceCall]
    lease: str


@value
class SaveLease:
    """Write the lease, in the place of what was written of it before."""

    lease: Lease

    @property
    def id(self) -> str:
        """The lease that is written."""
        return self.lease.id


@value
class DeleteLease:
    """Remove what was written of a lease."""

    id: str


@value
class EndWithholding:
    """Note that the devices which a lost state withheld are free; until then each restart withholds them again."""

    @property
    def id(self) -> str:
        """No lease has this id."""
        return ""


@value
class SaveDrain:
    """Note that a target is drained, or with None that it is no longer. It outlives reboots, and a loss of leases."""

    target: DrainTarget
    drain: Drain | None

    @property
    def id(self) -> str:
        """No lease has this id, and no other target."""
        return f"\0{self.target.resource or ''}\0{self.target.device or ''}"

    def put_into(self, drains: dict[DrainTarget, Drain]) -> None:
        """Make the change in ``drains``."""
        if self.drain is None:
            drains.pop(self.target, None)
        else:
            drains[self.target] = self.drain


#: A change of what outlives a restart.
Change = SaveLease | DeleteLease | EndWithholding | SaveDrain


@value
class Write:
    """Make ``changes``, all or none; :class:`~.messages.Saved` with this number follows if ``awaited``.

    Writes that nobody awaits are tried again until they succeed. One without changes is made when all before it are, or
    have failed.
    """

    number: int
    changes: tuple[Change, ...]
    awaited: bool = True


@value
class WatchOwner:
    """Say :class:`~.messages.OwnerEnded` when the process of the owner has ended, or its time is over.

    It takes the place of what was watched for this lease before. A connection is watched by whoever serves it.
    """

    id: str
    owner: Owner


@value
class Unwatch:
    """Do not watch the owner of this lease, or the process of this plugin, any more."""

    subject: str | Key


@value
class WatchPlugin:
    """Say :class:`~.messages.PluginEnded` when the process of a plugin has ended that may be preparing devices."""

    key: Key
    pid: int
    #: Whether its connection has ended: if there is no such process, the plugin has ended, and is not elsewhere.
    is_cut: bool


@value
class StopOwner:
    """Send SIGTERM to the process that owns the lease: a device of it is unhealthy, or its longest time is over.

    It is sent only to a process of the user whose lease this is, or if that is root.
    """

    id: str
    process: ProcessIdentity
    uid: int
    reason: str


@value
class WriteFile:
    """Write the CDI file of a lease; :class:`~.messages.FileWritten` follows."""

    lease: Lease


@value
class RemoveFile:
    """Remove the CDI file of a lease, if there is one."""

    id: str
    cdi_name: str


@value
class EndAccess:
    """Let the user of a lease open nodes no more because of it, before others get its devices."""

    id: str


@value
class ShowLease:
    """Show the lease as it is now. A lease that is gone is shown once."""

    lease: Lease


@value
class ShowDrain:
    """A target is drained, or with ``ended`` no longer: for the log."""

    drain: Drain
    #: Why it has ended.
    ended: str | None = None


@value
class Failed:
    """A caller did not get a lease: for the log and metrics."""

    resources: tuple[str, ...]
    uid: int
    failure: Failure


Effect = (
    LeaseReply
    | ReleaseReply
    | RecoverReply
    | TellPlace
    | DrainReply
    | CallPlugin
    | Withdraw
    | Write
    | WatchOwner
    | Unwatch
    | WatchPlugin
    | StopOwner
    | WriteFile
    | RemoveFile
    | EndAccess
    | ShowLease
    | ShowDrain
    | Failed
)
