"""Follows plugins in observe mode, in which another consumer, such as a kubelet, registers them.

Each observed plugin of a followed type has a link, as registered plugins have. The link is opened when the plugin has
answered GetInfo, and dropped when its socket is gone or it stops answering. Plugins of other types are only asked for
their info.
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
    """Opens and drops the links of observed plugins."""

    def open(self, plugin: Plugin, file: Identity | None) -> Link:
        """Open the link to a plugin whose socket is ``file``."""

    def start(self, plugin: Plugin, follow: Follow) -> None:
        """Run ``follow`` until the link is dropped, and start it again each time it returns."""

    def drop(self, plugin: Plugin) -> None:
        """End the link to a plugin at once, if there is one; cancel its follow, and do not wait for it."""


@attrs.frozen
class _Follower:
    """The function that follows plugins of one type, in the form of a handler."""

    follow: Following


class Observers:
    """Follows the observed plugins of a node."""

    def __init__(self, links: ObserverLinks, followings: Mapping[str, Following], config: CallConfig) -> None:
        self._links = links
        # Only ``follow`` is called. Its errors are contained and logged like those of a handler.
        followers = {of: cast("Handler", _Follower(following)) for of, following in followings.items()}
        self._calls = {of: HandlerCalls(follower, config, of) for of, follower in followers.items()}

    def begin(self, plugin: Plugin, file: Identity | None) -> None:
        """Follow a plugin whose socket is ``file``, if plugins of its type are followed."""
        calls = self._calls.get(plugin.type)
        if calls is not None:
            link = self._links.open(plugin, file)
            self._links.start(plugin, partial(calls.follow, plugin, link))

    def end(self, plugin: Plugin) -> None:
        """Stop following a plugin."""
        self._links.drop(plugin)
