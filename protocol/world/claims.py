"""Claims to names: which plugins have a (type, name), wait for it or were refused, and which of them is active.

A plugin claims its name before it is validated. ``plugind.protocol.world.worlds`` decides which claims to admit.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import attrs

from ..messages.reconciler import Claimed, HandlerPort
from ..plugins.info import InstancePolicy, PluginInfo
from ..trust.users import Users, user_words
from ..values import record, value
from .line import NameLine
from .ranking import Rank, Ranking


class ClaimPhase(enum.Enum):
    """The progress of the plugin of a claim."""

    ADMITTED = "admitted"
    REGISTERED = "registered"
    #: The handler deregisters the plugin, or will next.
    LEAVING = "leaving"


@record
class Claim:
    """The right of a plugin to its name, from admission until its registration actor releases it."""

    path: str
    generation: int
    info: PluginInfo
    handler: HandlerPort
    phase: ClaimPhase = ClaimPhase.ADMITTED
    #: Of a name with a single active plugin, the one with the highest rank is active: see :func:`rank_of`.
    rank: Rank = ()
    #: Whether the handler reports that the plugin can be used; None without a report.
    usable: bool | None = None
    #: Whether the plugin was registered, even if it is leaving now.
    was_registered: bool = False
    #: Whether the plugin was of root or of the user that runs plugind when it was admitted.
    privileged: bool = False
    #: Whether the plugin was told that another one waits for its name.
    wanted: bool = False


Paths = Mapping[str, None]
#: Shared by most names, to save memory: an empty dictionary takes 64 bytes, and one that was emptied 184.
_NONE: Final[Paths] = MappingProxyType({})


def _with(paths: Paths, path: str) -> Paths:
    if not isinstance(paths, dict):
        return {path: None}
    paths[path] = None
    return paths


def _without(paths: Paths, path: str) -> Paths:
    if not isinstance(paths, dict):
        return paths
    paths.pop(path, None)
    return paths or _NONE


@value
class Freed:
    """What the release of a claim means for the other plugins of its name."""

    #: Whether the plugin was shown as standing by.
    stood_by: bool
    #: Whether the plugin was, or may have been, registered: others may have failed because of it.
    was_taken: bool


@record
class _WaitingClaims:
    """The unanswered claims to a name."""

    #: By path, in the order of arrival.
    claims: OrderedDict[str, Claimed] = attrs.Factory(OrderedDict)
    endpoints: Counter[str] = attrs.Factory(Counter)

    def add(self, claimed: Claimed) -> None:
        self.remove(claimed.path)
        self.claims[claimed.path] = claimed
        self.endpoints[claimed.info.endpoint] += 1

    def remove(self, path: str) -> None:
        claimed = self.claims.pop(path, None)
        if claimed is not None:
            self.endpoints[claimed.info.endpoint] -= 1
            if not self.endpoints[claimed.info.endpoint]:
                del self.endpoints[claimed.info.endpoint]


@record
class Name:
    """The claims to one (type, name)."""

    #: The claims of registered plugins by path, in the order of registration.
    registered: dict[str, Claim] = attrs.Factory(dict)
    #: How many of them are privileged.
    _privileged: int = 0
    #: Paths that are admitted and not registered yet, or leaving. While there is one, no other claim is admitted.
    busy: Paths = _NONE
    #: The claim in ``busy`` that is not leaving.
    admitted: Claim | None = None
    line: NameLine = attrs.Factory(NameLine)
    standby: Paths = _NONE
    #: The path last found to be active, if the policy allows a single active one.
    active: str | None = None
    newest: str | None = None
    _queue: _WaitingClaims | None = None
    #: The registered paths by rank, if there are two or more and the policy allows a single active one.
    _ranking: Ranking[str] | None = None

    @property
    def empty(self) -> bool:
        """Whether no plugin has the name, waits for it, or was refused it."""
        return not (self.registered or self.busy or (self._queue and self._queue.claims) or self.line)

    # --- the claims that wait ---

    def ask(self, claimed: Claimed) -> Claimed | None:
        """Queue a claim, and return the claim that can be answered now, if there is one."""
        if self._queue is None:
            if not self.busy:
                return claimed
            self._queue = _WaitingClaims()
        self._queue.add(claimed)
        return self.next_to_answer()

    def next_to_answer(self) -> Claimed | None:
        """Remove and return the next claim that can be answered now; None while a plugin is busy."""
        if self.busy or self._queue is None or not self._queue.claims:
            return None
        claimed = next(iter(self._queue.claims.values()))
        self._queue.remove(claimed.path)
        if not self._queue.claims:
            self._queue = None
        return claimed

    def withdraw(self, path: str) -> None:
        """Drop the unanswered claim of ``path``, if there is one."""
        if self._queue is not None:
            self._queue.remove(path)

    def is_wanted_at_another(self, endpoint: str) -> bool:
        """Whether an unanswered claim has another endpoint."""
        endpoints = () if self._queue is None else self._queue.endpoints
        return len(endpoints) > (endpoint in endpoints)

    # --- the plugins that have the name ---

    def admit(self, claim: Claim) -> None:
        """Admit a claim. No other one is admitted until its plugin is registered, or has left the name."""
        self.busy = _with(self.busy, claim.path)
        self.admitted = claim

    def _settle(self, path: str) -> None:
        if self.admitted is not None and self.admitted.path == path:
            self.admitted = None

    def register(self, claim: Claim) -> None:
        """Note that the plugin of an admitted claim is registered."""
        self.busy = _without(self.busy, claim.path)
        self._settle(claim.path)
        self.registered[claim.path] = claim
        self._privileged += claim.privileged
        self.newest = claim.path
        if self._ranking is not None:
            self._ranking.add(claim.path, claim.rank)

    def rank_anew(self, claim: Claim) -> None:
        """Note the new rank of a registered plugin."""
        if self._ranking is not None:
            self._ranking.change(claim.path, claim.rank)

    def leave(self, path: str) -> bool:
        """Keep the name busy until the claim of ``path`` is released; return whether its plugin was registered."""
        was_registered = self._unregister(path)
        self.busy = _with(self.busy, path)
        self._settle(path)
        return was_registered

    def count_against(self, *, privileged: bool) -> int:
        """Return how many registered plugins count against one more. A privileged one may take over from all others."""
        return self._privileged if privileged else len(self.registered)

    def first_against(self, *, privileged: bool) -> str:
        """Return the socket of the first registered plugin that counts against one more; there must be one."""
        return next(path for path, claim in self.registered.items() if claim.privileged or not privileged)

    def holders(self) -> Iterator[tuple[str, int | None]]:
        """Yield socket and user of each registered plugin."""
        return ((claim.path, claim.info.uid) for claim in self.registered.values())

    def release(self, claim: Claim) -> Freed:
        """Drop an admitted claim, and return what that means for the others."""
        path = claim.path
        was_registered = self._unregister(path)
        freed = Freed(stood_by=path in self.standby, was_taken=was_registered or claim.phase is ClaimPhase.LEAVING)
        self.busy = _without(self.busy, path)
        self._settle(path)
        self.standby = _without(self.standby, path)
        return freed

    def _unregister(self, path: str) -> bool:
        claim = self.registered.pop(path, None)
        if claim is None:
            return False
        self._privileged -= claim.privileged
        if len(self.registered) < 2:
            self._ranking = None
        elif self._ranking is not None:
            self._ranking.remove(path)
        return True

    # --- roles ---

    def change_roles(self, policy: InstancePolicy) -> list[Claim]:
        """Decide which registered plugin is active, and return those whose role changed (behaviour 37).

        It must be called after each registration and its end. Then at most three plugins can change: the one that was
        active, the one that registered last, and the one that is active now.
        """
        if policy not in _SINGLE or not self.registered:
            return []
        before, self.active = self.active, self._highest()
        changed = []
        for path in dict.fromkeys((before, self.newest, self.active)):
            if path in self.registered and (path == self.active) == (path in self.standby):
                changed.append(self.registered[path])
                toggle = _without if path in self.standby else _with
                self.standby = toggle(self.standby, path)
        return changed

    def _highest(self) -> str | None:
        if len(self.registered) < 2:
            return next(iter(self.registered))
        if self._ranking is None:
            self._ranking = Ranking()
            for claim in self.registered.values():
                self._ranking.add(claim.path, claim.rank)
        return self._ranking.highest()


#: The policies with one active plugin. With ``REJECT`` there are two while a privileged one takes over.
_SINGLE = (InstancePolicy.NEWEST, InstancePolicy.HIGHEST_VERSION, InstancePolicy.REJECT)


def rank_of(info: PluginInfo, policy: InstancePolicy, *, privileged: bool) -> Rank:
    """Return the rank of a plugin among those of its name; of equal ones, the one that registered last is higher.

    Privileged plugins are above all others, whatever their versions (fault 80). Then those that their handler reports
    as usable come first, and those reported as unusable last; see :func:`rank_if`.
    """
    if policy is not InstancePolicy.HIGHEST_VERSION or info.version is None:
        return int(privileged), _UNREPORTED
    return int(privileged), _UNREPORTED, *info.version.rank


_UNREPORTED = 1
_USABLE = {True: 2, None: _UNREPORTED, False: 0}


def rank_if(rank: Rank, *, usable: bool | None) -> Rank:
    """Return ``rank`` with what the handler now reports."""
    return rank[0], _USABLE[usable], *rank[2:]


def key_of(info: PluginInfo) -> tuple[str, str]:
    """Return the (type, name) of a plugin."""
    return info.type, info.name


def taken(info: PluginInfo, socket: str) -> str:
    """Return why ``info`` cannot have its name: the plugin at ``socket`` has it."""
    return f"{info.type} {info.name!r} is registered already, by the socket {socket}"


def crowded(info: PluginInfo, limit: int) -> str:
    """Return why ``info`` cannot have its name: ``limit`` plugins have it."""
    return f"{info.type} {info.name!r} has {limit} instances already, the limit (raise it with --max-instances)"


def taken_by_another_user(info: PluginInfo, holders: Iterable[tuple[str, int | None]], users: Users) -> str | None:
    """Return why ``info`` cannot share its name with ``holders``, given as sockets and users; None if it can.

    Whatever the policy, other users cannot share a name (fault 80). Only root and the user that runs plugind can, since
    a driver that is updated may run as another user for a while.
    """
    if users.is_privileged(info.uid):
        return None
    for socket, uid in holders:
        if uid != info.uid:
            return (
                f"{info.type} {info.name!r} belongs to {user_words(uid)}, by the socket {socket}, and"
                f" {user_words(info.uid)} may not take it over: stop that plugin first, or run this one as that user"
                " or as root"
            )
    return None
