"""The state of a registration actor, and its reports to the status actor, the reconciler and the liveness actor."""

from __future__ import annotations

import math
from typing import Any

import attrs
import trio

from ...protocol.messages.discovery import SocketAppeared, SocketTouched
from ...protocol.messages.liveness import UnwatchLiveness, WatchLiveness
from ...protocol.messages.reconciler import ClaimReleased, HandlerPort, ListenerChanged, SocketDialed
from ...protocol.messages.registration import RegistrationMessage
from ...protocol.messages.status import Deregistered, OwnerChanged, StateChanged
from ...protocol.plugins.info import Plugin, PluginInfo
from ...protocol.plugins.status import Finished, Operation, Outcome
from ...protocol.registration import following
from ...protocol.registration.crashes import Crash
from ...protocol.registration.failures import Cause
from ...protocol.registration.following import Next
from ...protocol.registration.phases import NOT_DIALED, SERVING, Phase
from ...protocol.words import StateName
from ...protocol.world.effects import PendingDeregistration
from ..messaging.mailbox import offer, report
from .called import CalledConversation
from .config import RegistrationConfig
from .conversation import Conversation
from .inbox import RegistrationInbox


class Reports:
    """The socket, the try under way, what is owed, and what of it was reported."""

    __slots__ = (
        "_attempt",
        "_began",
        "_cause",
        "_claims",
        "_config",
        "_ended",
        "_ender",
        "_finished",
        "_handler",
        "_hurried",
        "_inbox",
        "_info",
        "_life_reported",
        "_looked_at",
        "_newest",
        "_next_look",
        "_notify_try",
        "_now",
        "_observed",
        "_operation",
        "_owed",
        "_pending",
        "_phase",
        "_reason",
        "_refused",
        "_scope",
        "_settings",
        "_shown",
        "_silent_until",
        "_socket",
        "_stopping",
        "_then",
        "_unsent",
        "_until",
        "_wanted",
        "_watched",
        "_why",
        "conversation",
    )

    def __init__(
        self,
        config: RegistrationConfig,
        inbox: RegistrationInbox,
        appeared: SocketAppeared,
        owed: PendingDeregistration | None,
        crash: Crash | None,
    ) -> None:
        self._config = config
        self._settings = config.settings
        self._inbox = inbox
        #: The socket that appeared last. The actor turns to it when the plugin before it is deregistered.
        self._newest = appeared
        self._socket = appeared
        self.conversation = self._converse(appeared)
        self._phase = Phase.WAITING
        #: When the present phase began; the time that is shown for it, which is later if it was looked at.
        self._now = self._began = trio.current_time()
        #: When the present pause ends by itself.
        self._until = math.inf
        self._scope: trio.CancelScope | None = None
        #: The message that ends the try under way, and has cancelled its scope.
        self._ender: RegistrationMessage | None = None
        #: Whether the timers have looked at the try under way, and when they look next.
        self._looked_at = False
        self._next_look = math.inf
        #: Until when a first try is not shown, counted from its dial slot; None if it is shown.
        self._silent_until: float | None = None
        #: Messages that were read during a try, did not end it, and still have to take effect.
        self._pending: tuple[RegistrationMessage, ...] = ()
        #: What the actor begins with; later what follows the Deregister under way.
        self._then: Next = following.first(appeared, crash)
        #: The number of the present or last try, and what the plugin answered or was told in an earlier try.
        self._attempt = 0
        self._notify_try = 0
        self._cause: Cause | None = None
        self._refused: Next = following.Try()
        #: Whether an event has brought the last try of this generation forward (``following``).
        self._hurried = False
        #: Whether plugind stops. The actor ends after a Register or notification under way.
        self._stopping = False
        #: Whether the name is claimed and not released, and the handler that serves the admitted plugin.
        self._claims = False
        self._handler: HandlerPort | None = None
        self._wanted = False
        #: The Register that has begun and is not undone.
        self._owed = owed
        self._why = ""
        #: The registration that has ended, or that ends once the handler has deregistered the plugin.
        self._ended: Deregistered | None = None
        #: The plugin's last info in this generation, as it is shown; of a refused info only type and name.
        self._info: PluginInfo | None = None
        #: The last report to the status actor, the operations that have ended since, and the reason that is shown.
        self._shown: StateChanged | None = None
        self._finished: tuple[Finished, ...] = ()
        self._operation: Operation | None = None
        self._reason: str | None = None
        #: The plugin that is followed in observe mode.
        self._observed: Plugin | None = None
        self._watched = False
        #: Whether the reconciler knows that a dial has reached the socket.
        self._life_reported = False
        #: Messages for which a channel had no room, with the channel.
        self._unsent: tuple[tuple[trio.MemorySendChannel[Any], object], ...] = ()
        if owed is not None:
            # Path and root are the same, but a socket that has appeared since has nothing to do with the crash.
            self._then = following.first(appeared, crash if appeared.generation == owed.generation else None)
            self._socket, self._info = attrs.evolve(appeared, generation=owed.generation), owed.info
            self._why = "its actor crashed"
            if owed.registered:
                self._ended = Deregistered(owed.generation, owed.info, self._why)

    def _converse(self, appeared: SocketAppeared) -> Conversation | CalledConversation:
        if appeared.call is None:
            return Conversation(self._config.conversation, appeared.path, self._settings)
        return CalledConversation(appeared.call, self._settings)

    def _go_to_newest(self) -> None:
        """Go to the newest generation. Until now the plugin before it was shown, and passed to its handler."""
        self._socket, self._info, self._life_reported, self._hurried = self._newest, None, False, False
        if isinstance(self.conversation, Conversation) and self._newest.call is None:
            self.conversation.peer = self.conversation.reached_at = None
        else:
            self.conversation = self._converse(self._newest)

    def _plugin(self, info: PluginInfo, generation: int) -> Plugin:
        socket, peer = self._socket, self.conversation.peer
        return Plugin(
            info.type,
            info.name,
            info.endpoint,
            info.versions,
            socket.path,
            generation,
            socket.deprecated,
            self.conversation.is_privileged(info.uid),
            None if socket.call is None else socket.call.pid,
            None if socket.call is None else socket.call.options,
            None if peer is None else peer.pid,
            info.uid,
            (socket.identity.device, socket.identity.inode),
        )

    @property
    def _type(self) -> str | None:
        return None if self._info is None else self._info.type

    def _finish(self, outcome: Outcome) -> None:
        """Note how the operation under way ended, if there is one. :meth:`_enter` notes a success by itself."""
        operation, self._operation = self._operation, None
        if operation is not None:
            self._finished += (Finished(operation, outcome, trio.current_time() - self._began),)

    def _report_life(self) -> None:
        """Report when a dial first reached the socket of this generation, if one has."""
        since = self.conversation.reached_at
        if since is not None:
            self._life_reported = True
            self._send(self._config.reconciler, SocketDialed(self._socket.path, self._socket.generation, since))

    def _show(self) -> None:
        """Report the phase, unless nothing that is shown has changed."""
        name, shown, socket, reason = self._phase.state, self._shown, self._socket, self._reason
        cause = reason if self._cause is None else str(self._cause)
        finished, self._finished, self._silent_until = self._finished, (), None
        if (
            # Asking an observed plugin again changes nothing that is shown.
            (not finished or name is StateName.OBSERVED)
            and shown is not None
            and shown.state is name
            and shown.step is self._phase.step
            and shown.reason == reason
            and shown.cause == cause
            and shown.attempt == self._attempt
            and shown.generation == socket.generation
        ):
            return
        now, peer = self._now, self.conversation.peer
        ended = None
        if self._ended is not None and (self._phase is not Phase.LEAVE or self._ended.generation < socket.generation):
            ended, self._ended = self._ended, None
        self._shown = StateChanged(
            socket.path,
            socket.root,
            socket.generation,
            state=name,
            time=now,
            reason=reason,
            attempt=self._attempt,
            next_try=self._until if self._until < math.inf and name is not StateName.OBSERVED else None,
            info=self._info,
            registered_in=now - socket.time if self._phase is Phase.REGISTERED else None,
            deprecated=socket.deprecated,
            uid=None if peer is None else peer.uid,
            pid=None if peer is None else peer.pid,
            finished=finished,
            cause=cause,
            deregistered=ended,
            still_there=self._stopping and self._phase is Phase.GONE,
            owner=socket.identity.owner,
            last_known=socket.last_known,
            step=self._phase.step,
        )
        self._send(self._config.status, self._shown)

    def _show_again(self) -> None:
        """Report the present state again: the status or the liveness actor has lost it, or it was silent."""
        if self._silent_until is not None:
            self._show()
            return
        if self._shown is not None:
            self._send(self._config.status, attrs.evolve(self._shown, finished=(), deregistered=None))
        self._watched = False
        self._watch_liveness()

    def _note_owner(self, message: SocketTouched) -> None:
        """Show the new owner of the socket's file. Plugins change it after they have bound the socket."""
        socket, owner = self._socket, None if message.identity is None else message.identity.owner
        if owner is None or message.generation != socket.generation or owner == socket.identity.owner:
            return
        self._socket = attrs.evolve(socket, identity=attrs.evolve(socket.identity, owner=owner))
        if self._shown is not None and self._shown.generation == socket.generation:
            self._shown = attrs.evolve(self._shown, owner=owner)
            self._send(self._config.status, OwnerChanged(socket.path, socket.generation, owner))

    def _watch_liveness(self) -> None:
        """Have the liveness actor watch the socket while it is registered or stale and so not dialed (fault 39)."""
        # Stay subscribed while a stale socket is dialed: it may refuse again, and there may be thousands of them.
        wanted = self._phase in NOT_DIALED or (self._watched and self._phase.state is StateName.DIALING)
        if wanted is self._watched:
            return
        self._watched = wanted
        self._send(self._config.liveness, self._liveness() if wanted else UnwatchLiveness(self._socket.path))
        if self._phase is Phase.STALE:
            gone = ListenerChanged(self._socket.path, self._socket.generation, listening=False)
            self._send(self._config.reconciler, gone)
            # The next dial that reaches the socket reports that its life goes on.
            self._life_reported, self.conversation.reached_at = False, None

    def _liveness(self) -> WatchLiveness:
        socket, conversation, info = self._socket, self.conversation, self._info
        path, identity, root, generation = socket.path, socket.identity, socket.root, socket.generation
        if self._phase not in SERVING or info is None:
            return WatchLiveness(path, generation, self._inbox, registered=False, identity=identity, root=root)
        pid = 0 if conversation.peer is None else conversation.peer.pid
        return WatchLiveness(
            path,
            generation,
            self._inbox,
            registered=True,
            identity=identity,
            root=root,
            endpoint=info.endpoint,
            pid=pid,
            dialed=conversation.dialed_at,
            endpoint_missing=conversation.endpoint is not None and conversation.endpoint.kind is None,
        )

    def _release(self) -> None:
        """Release the claimed name."""
        self._claims = False
        self._send(self._config.reconciler, ClaimReleased(self._socket.path, self._socket.generation))

    def _send(self, channel: trio.MemorySendChannel[Any], message: object) -> None:
        """Send ``message`` after earlier ones. Messages that find no room are left to :meth:`_send_rest`."""
        if self._unsent or not offer(channel, message):
            self._unsent += ((channel, message),)

    async def _send_rest(self) -> None:
        """Send the messages for which there was no room."""
        while self._unsent:
            channel, message = self._unsent[0]
            await report(channel, message)
            self._unsent = self._unsent[1:]
