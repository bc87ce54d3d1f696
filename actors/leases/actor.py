"""The lease actor: it owns the leases of the node.

It takes the messages of callers, of the devices actor, of the tasks that call plugins, and of its own parts, and waits
for nothing else: the disk, the processes of owners and the files for container engines have tasks of their own. What
follows from a message is decided by ``plugind.protocol.leases.book``.

When it has crashed, its state may be wrong. So the next one begins as after a restart of plugind, from what is written
and what is still to be written (:class:`~plugind.actors.leases.saving.Saving`). It knows more than that:
:class:`~plugind.actors.leases.memory.LeasesMemory` says who waits for an answer, of which leases somebody was notified,
and which calls are under way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, assert_never

import attrs
import trio

from ...protocol.leases import effects as e
from ...protocol.leases import messages as m
from ...protocol.leases.book import Book
from ...protocol.leases.values import Lease, LeaseState
from ..io.node_access import NodeAccess
from ..messaging.mailbox import offer, send_answer
from .cdi_writer import CdiWriter
from .inbox import LeasesInbox
from .lease_log import LeaseLog
from .memory import LeasesMemory
from .owners import Owners
from .saving import Saving

if TYPE_CHECKING:
    from .history import LeaseHistory

CRASHED = "what gives leases in plugind has crashed, and begins anew: ask again"

#: How many messages are taken, or leases of before the start, before other actors have their turn.
BATCH = 64


class LeaseActor:
    """Carries out what follows from each message."""

    def __init__(
        self,
        inbox: LeasesInbox,
        book: Book,
        saving: Saving,
        owners: Owners,
        files: CdiWriter,
        access: NodeAccess,
        memory: LeasesMemory,
        log: LeaseLog,
        history: LeaseHistory | None = None,
    ) -> None:
        """Begin with an empty ``book``."""
        self._inbox = inbox
        self._book = book
        self._saving = saving
        self._owners = owners
        self._files = files
        self._access = access
        self._memory = memory
        self._log = log
        self._history = history

    async def run(self) -> None:
        """Own the leases until cancelled."""
        while True:
            self._memory.withheld = self._access.withheld = self._book.withheld
            self._publish()
            await self._take_one()
            for _ in range(BATCH):
                try:
                    self._take(self._inbox.receive_nowait())
                except trio.WouldBlock:
                    break
            else:
                await trio.lowlevel.checkpoint()
            self._carry_out(self._book.pass_time(trio.current_time()))

    async def _take_one(self) -> None:
        """Take the next message, or let the time pass until something ends."""
        end = self._book.next_end
        if end == math.inf:  # So it is with most turns, and a deadline costs more than many a message.
            self._take(await self._inbox.receive())
        else:
            with trio.move_on_at(end):
                self._take(await self._inbox.receive())

    # --- a start ------------------------------------------------------------------------------------------------------

    async def start(self, kept: m.Kept) -> None:
        """Begin with the leases that were ``kept`` over a restart of plugind, before any message is taken."""
        self._log.keep(kept)
        self._memory.begin(kept.leases)
        if self._history is not None and self._saving.is_read:
            self._history.keep(kept.leases)
        for first in range(0, max(1, len(kept.leases)), BATCH):
            some = attrs.evolve(kept, leases=kept.leases[first : first + BATCH])
            self._carry_out(self._book.start(some, trio.current_time()))
            await trio.lowlevel.checkpoint()

    def start_again(self) -> None:
        """Begin after a crash, with what is written and what is remembered."""
        for read in self._inbox.start_again():
            self._note(read)
        self._owners.forget_all()
        kept = self._saving.start_again()
        self._log.keep(kept)
        self._access.begin(kept.leases, kept.withheld)
        self._carry_out(self._book.start_again(kept, self._memory.notified, trio.current_time()))
        for lease, address in self._memory.take_calls():
            address.send_nowait(m.CallWithdrawn(lease))
        for asked in self._memory.take_asked():
            send_answer(asked.reply, m.Failure(m.Problem.UNAVAILABLE, CRASHED))
        for gone in [lease for lease in self._memory.shown.values() if self._book.find(lease.id) is None]:
            self._carry_out([e.ShowLease(attrs.evolve(gone, state=LeaseState.GONE, reason=CRASHED))])
        match self._memory.take_in_hand():
            case None:
                pass
            case m.AskerLeft() as left:
                self._carry_out(self._book.handle(left, trio.current_time()))
                self._memory.leave(left.ticket)
            case reader:
                self._tell_reader(reader)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _take(self, message: m.LeasesMessage) -> None:
        match message:
            case m.LeasesAsked() | m.ShowAsked() | m.LeasesSubscribed():
                self._memory.in_hand = message
                self._tell_reader(message)
            case m.LeasesUnsubscribed():
                self._memory.audience.remove(message.subscriber)
            case _:
                self._note(message)
                self._carry_out(self._book.handle(message, trio.current_time()))
        self._memory.in_hand = None
        if isinstance(message, m.AskerLeft):
            self._memory.leave(message.ticket)

    def _note(self, message: m.StateMessage) -> None:
        """Note what is lost if the actor crashes over this message, or has crashed before it."""
        self._memory.note(message)
        if isinstance(message, m.LeasesRead):
            self._files.clean_later([lease.cdi_name for lease in message.kept.leases if lease.cdi_name is not None])
            self._access.begin(message.kept.leases, message.kept.withheld)
            self._log.show_other_boot(message.kept)
            if self._history is not None:
                self._history.keep(message.kept.leases)

    def _tell_reader(self, reader: m.LeasesAsked | m.ShowAsked | m.LeasesSubscribed) -> None:
        match reader:
            case m.LeasesAsked():
                offer(reader.reply, self._snapshot())
            case m.ShowAsked():
                unknown = m.Failure(m.Problem.UNKNOWN, f"there is no lease {reader.id}")
                offer(reader.reply, self._book.find(reader.id) or unknown)
            case m.LeasesSubscribed():
                self._publish()  # So that nothing of the snapshot comes again as a change.
                self._memory.audience.add(reader.subscriber, self._snapshot())
            case _:
                assert_never(reader)

    def _snapshot(self) -> m.LeasesSnapshot:
        problem = self._saving.problem
        shown = self._book.snapshot(trio.current_time(), problem or self._files.problem)
        shown = attrs.evolve(shown, state_fails=problem is not None, state_failures=self._saving.failures)
        if self._history is not None:
            shown = attrs.evolve(shown, history_losses=self._history.losses)
        return self._memory.counts.added_to(shown)

    # --- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Iterable[e.Effect]) -> None:
        """Do what follows from an event, in order, and then what follows from that."""
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            match effect:
                case e.AnswerAsker():
                    todo.extend(self._answer(effect))
                case e.TellPlace():
                    offer(effect.progress, effect.place)
                case e.CallPlugin():
                    self._memory.calling(effect)
                    effect.calls.send_nowait(effect.call)
                case e.Withdraw():
                    effect.calls.send_nowait(m.CallWithdrawn(effect.lease))
                case e.Write():
                    self._saving.write(effect)
                case e.WatchOwner():
                    self._owners.watch(effect)
                case e.Unwatch():
                    self._owners.forget(effect.subject)
                case e.WatchPlugin():
                    self._owners.watch_plugin(effect)
                case e.StopOwner():
                    self._stop(effect)
                case e.WriteFile():
                    self._files.write(effect.lease)
                case e.RemoveFile():
                    self._files.remove(effect.cdi_name)
                case e.EndAccess():
                    self._access.end(effect.id)
                case e.ShowLease():
                    self._show(effect.lease)
                case e.ShowDrain():
                    self._log.show_drain(effect)
                case e.Failed():
                    self._memory.counts.fail(effect)
                    self._log.fail(effect)
                case _:
                    assert_never(effect)

    def _show(self, lease: Lease) -> None:
        before = self._memory.show(lease)
        self._log.show(before, lease)
        if self._history is not None:
            self._history.note(before, lease)

    def _stop(self, effect: e.StopOwner) -> None:
        try:
            self._owners.stop(effect)
        except OSError as error:
            self._log.fail_to_stop(effect, error)
        else:
            self._log.stop(effect)

    def _answer(self, effect: e.LeaseReply | e.ReleaseReply | e.RecoverReply | e.DrainReply) -> list[e.Effect]:
        """Answer a caller; return what follows if it does not get the answer: a lease that nobody knows of ends."""
        asked = self._memory.answered(effect.reply)
        try:
            effect.send()
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            if asked is not None and asked.ticket is not None:
                return self._book.handle(m.AskerLeft(asked.ticket), trio.current_time())
        else:
            if asked is not None and isinstance(effect.answer, Lease):
                self._memory.tell(asked, effect.answer)
        return []

    def _publish(self) -> None:
        """Tell the subscribers what has changed, and those that were dropped that they were."""
        changed, self._memory.changed = self._memory.changed, {}
        audience = self._memory.audience
        if audience.subscribers:
            for lease in changed.values():
                audience.tell(m.LeaseChanged(trio.current_time(), lease), self._log.log)
        audience.tell_lagging()
