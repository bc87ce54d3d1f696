"""What follows plugins in observe mode: another consumer, such as a kubelet, registers them.

Each observed plugin of a type that is followed has a link, as registered plugins have. It is opened once the plugin has
said what it is, and dropped when its socket is gone or it does not answer any more. Plugins of other types are asked
for their info and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol, cast

import attrs

from ...protocol.identity import Identity
from ...protocol.plugins.info import Plugin
from .calls import CallConfig, HandlerCalls
from .handler import Handler
from .link import Follow, Link

#: Follows one plugin until it is cancelled.
Following = Callable[[Plugin, Link], Awaitable[None]]


class ObserverLinks(Protocol):
    """What opens and drops the links of observed plugins."""

    def open(self, plugin: Plugin, file: Identity | None) -> Link:
        """Open the link to a plugin whose socket is ``file``."""

    def start(self, plugin: Plugin, follow: Follow) -> None:
        """Run ``follow`` from now on, and again after each end, until the link is dropped."""

    def drop(self, plugin: Plugin) -> None:
        """End the link to a plugin at once, if there is one; its follow is cancelled, and not waited for."""


@attrs.frozen
class _Follower:
    """What is called to follow plugins of one type, in the form of a handler."""

    follow: Following


class Observers:
    """Follows the observed plugins of a node."""

    def __init__(self, links: ObserverLinks, followings: Mapping[str, Following], config: CallConfig) -> None:
        """Follow plugins of each type in ``followings``."""
        self._links = links
        # Nothing is called but ``follow``: its errors are contained and logged as those of a handler are.
        followers = {of: cast("Handler", _Follower(following)) for of, following in followings.items()}
        self._calls = {of: HandlerCalls(follower, config, of) for of, follower in followers.items()}

    def begin(self, plugin: Plugin, file: Identity | None) -> None:
        """Follow a plugin whose socket is ``file``, if plugins of its type are followed."""
        calls = self._calls.get(plugin.type)
        if calls is not None:
            link = self._links.open(plugin, file)
            self._links.start(plugin, partial(calls.follow, plugin, link))

    def end(self, plugin: Plugin) -> None:
        """Follow a plugin no more."""
        self._links.drop(plugin)
