"""Asks the handlers to refresh the facts of plugins, for ``plugind retry --facts``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..messages.addresses import Address
from ..messages.consumers import FactsAsked
from ..messages.reconciler import RetryAnswer
from ..plugins.status import StateName
from ..values import record


class Instance(Protocol):
    """A plugin whose facts can be asked for."""

    @property
    def socket(self) -> str:
        """The path of its socket."""

    @property
    def generation(self) -> int:
        """The generation of the socket."""

    @property
    def state(self) -> StateName:
        """The state of its registration."""


ASKED = "its facts are asked for now"
NO_FACTS = "the handler of its type asks for no facts"


@record
class _AnswerTaker:
    """Stores an answer that comes at once."""

    is_yes: bool = False

    def send_nowait(self, message: bool, /) -> None:
        """Store the answer."""
        self.is_yes = message


def ask_for_facts(links: Address[FactsAsked], plugins: Iterable[Instance]) -> tuple[RetryAnswer, ...]:
    """Ask to refresh the facts of each registered plugin; return for each plugin whether that was possible."""
    return tuple(_asked(links, plugin) for plugin in plugins)


def _asked(links: Address[FactsAsked], plugin: Instance) -> RetryAnswer:
    if plugin.state not in (StateName.REGISTERED, StateName.OBSERVED):
        why = f"it is {plugin.state}, and has facts only once it is registered"
        return RetryAnswer(plugin.socket, tried=False, why=why)
    answer = _AnswerTaker()
    links.send_nowait(FactsAsked(plugin.socket, plugin.generation, answer))
    return RetryAnswer(plugin.socket, answer.is_yes, ASKED if answer.is_yes else NO_FACTS)
