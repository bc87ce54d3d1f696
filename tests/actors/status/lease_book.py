"""A lease actor whose disk, plugins and files do at once what they are asked, for the tests of the status socket."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

import trio

from plugind.actors.devices.calls import NOT_FOLLOWED
from plugind.actors.leases.memory import LeasesMemory
from plugind.protocol.leases import effects as e
from plugind.protocol.leases import messages as m
from plugind.protocol.leases.book import Book, Sources
from plugind.protocol.leases.replies import Failure, LeaseChanged, Problem
from plugind.protocol.leases.values import Answer, Lease
from plugind.protocol.messages.addresses import Address
from plugind.tests.protocol.leases.script import offer

#: What the plugin answers.
ANSWER = Answer({"VISIBLE": "all"})


class BookActor:
    """It has the same book as the real one, and takes each message when it is sent."""

    def __init__(self, *gpus: str) -> None:
        numbers = itertools.count(1)
        sources = Sources(lambda: 1000.0 + trio.current_time(), lambda: 0, lambda: next(numbers))
        self._inbox: deque[m.LeasesMessage] = deque()
        self._runs = False
        self.book = Book(self, sources)
        #: Whether it takes no message, as one that hangs.
        self.hangs = False
        #: Whether the plugin is not asked, because nothing follows it any more.
        self.refuses = False
        self.messages: list[m.LeasesMessage] = []
        self._subscribers: list[Address[m.LeasesViewMessage]] = []
        self._memory = LeasesMemory()
        self.send_nowait(m.OfferChanged(offer(gpus)))

    @property
    def leases(self) -> tuple[Lease, ...]:
        return self.book.snapshot(0.0).leases

    def send_nowait(self, message: m.LeasesMessage, /) -> None:
        self.messages.append(message)
        if not self.hangs:
            self._inbox.append(message)
            self._work()

    def pass_time(self) -> None:
        """Let the time that has passed have its effect."""
        self._carry_out(self.book.pass_time(trio.current_time()))
        self._work()

    def _work(self) -> None:
        if not self._runs:
            self._runs = True
            while self._inbox:
                self._take(self._inbox.popleft())
            self._runs = False

    def _take(self, message: m.LeasesMessage) -> None:
        match message:
            case m.LeasesAsked():
                message.reply.send_nowait(self._memory.counts.added_to(self.book.snapshot(trio.current_time())))
            case m.ShowAsked():
                unknown = Failure(Problem.UNKNOWN, f"there is no lease {message.id}")
                message.reply.send_nowait(self.book.find(message.id) or unknown)
            case m.LeasesSubscribed():
                self._subscribers.append(message.subscriber)
                message.subscriber.send_nowait(self.book.snapshot(trio.current_time()))
            case m.LeasesUnsubscribed():
                self._subscribers.remove(message.subscriber)
            case _:
                self._memory.note(message)
                self._carry_out(self.book.handle(message, trio.current_time()))

    def _carry_out(self, effects: Iterable[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.AnswerAsker():
                    asked = self._memory.answered(effect.reply)
                    effect.send()
                    if asked is not None and isinstance(effect.answer, Lease):
                        self._memory.tell(asked, effect.answer)
                case e.TellPlace():
                    effect.progress.send_nowait(effect.place)
                case e.Write(awaited=True):
                    self._inbox.append(m.Saved(effect.number))
                case e.CallPlugin(call=m.AllocateAsked() as call) if self.refuses:
                    self._inbox.append(m.AllocationRefused(call.lease, call.resource, NOT_FOLLOWED))
                case e.CallPlugin(call=m.AllocateAsked() as call):
                    self._inbox.append(m.Allocated(call.lease, call.resource, ANSWER, 0.25, uid=0))
                case e.Failed():
                    self._memory.counts.fail(effect)
                case e.WriteFile():
                    self._inbox.append(m.FileWritten(effect.lease.id))
                case e.ShowLease():
                    self._memory.show(effect.lease)
                    for subscriber in self._subscribers:
                        subscriber.send_nowait(LeaseChanged(trio.current_time(), effect.lease))
                case _:
                    pass
