"""Whose plugins are called and registered, and to which users names go, checked while a script is played."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

import attrs

from plugind.protocol.plugins.info import Plugin

#: The reason why a plugin may not have an endpoint, with the user of the plugin that has it.
_TAKEN = re.compile(r"the endpoint .* belongs to .* of user (\d+), by the socket ")


@attrs.define(eq=False)
class TrustOracle:
    """Nobody but a trusted user is called, and no name passes from a user to another who is not privileged.

    No other user's plugin keeps a privileged one from its endpoint (fault 79).
    It knows the users from the network in memory, and who is trusted from the script.
    """

    _violated: Callable[[str, str], None]
    #: The users who may share the names of others, and those who may only register plugins.
    _privileged: Collection[int]
    _trusted: Collection[int]
    #: The user who listened when a path was last connected to, by path.
    _called: dict[str, int] = attrs.field(factory=dict)
    #: The user for whom the plugin of a path was registered last.
    _holders: dict[str, int] = attrs.field(factory=dict)

    def connected(self, path: str, uid: int) -> None:
        """The daemon has a connection to the plugin of user ``uid`` at ``path``."""
        self._called[path] = uid
        if uid not in (*self._privileged, *self._trusted):
            self._violated("trust", f"{path} of user {uid} is called")

    def registering(self, plugin: Plugin, others: Iterable[str]) -> None:
        """A plugin is registered besides those of the same name at the paths ``others``."""
        uid = self._holders[plugin.socket] = self._called[plugin.socket]
        if plugin.privileged is not (uid in self._privileged):
            self._violated("trust", f"{plugin.socket} of user {uid} is registered with privileged={plugin.privileged}")
        for other in others:
            holder = self._holders[other]
            if uid != holder and uid not in self._privileged:
                self._violated(
                    "trust", f"{plugin.name} passes from user {holder} at {other} to user {uid} at {plugin.socket}"
                )

    def notified(self, path: str) -> None:
        """The plugin at ``path`` is notified that it is registered."""
        uid, holder = self._called[path], self._holders[path]
        if uid != holder:
            self._violated("trust", f"user {uid} at {path} is notified of the registration of user {holder}")

    def refused(self, path: str, reason: str) -> None:
        """The plugin at ``path`` is notified that it is not registered."""
        uid, taken = self._called[path], _TAKEN.search(reason)
        if uid in self._privileged and taken is not None and int(taken[1]) not in self._privileged:
            self._violated("endpoint", f"{path} of user {uid} is kept from its endpoint by user {taken[1]}")
