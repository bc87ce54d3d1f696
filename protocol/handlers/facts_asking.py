"""Asks the handlers to refresh the facts of plugins, for ``plugind retry --facts``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ..messages.reconciler import RetryAnswer
from ..plugins.status import StateName

#: Has the handler of a plugin refresh its facts, by its socket and generation; returns whether the handler does that.
RefreshFacts = Callable[[str, int], bool]


class AskedPlugin(Protocol):
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


def ask_for_facts(refresh: RefreshFacts, plugins: Iterable[AskedPlugin]) -> tuple[RetryAnswer, ...]:
    """Ask to refresh the facts of each registered plugin; return for each plugin whether that was possible."""
    return tuple(_asked(refresh, plugin) for plugin in plugins)


def _asked(refresh: RefreshFacts, plugin: AskedPlugin) -> RetryAnswer:
    if plugin.state not in (StateName.REGISTERED, StateName.OBSERVED):
        why = f"it is {plugin.state}, and has facts only once it is registered"
        return RetryAnswer(plugin.socket, tried=False, why=why)
    tried = refresh(plugin.socket, plugin.generation)
    return RetryAnswer(plugin.socket, tried, ASKED if tried else NO_FACTS)
