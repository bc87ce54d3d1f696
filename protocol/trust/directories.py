"""Who may write to a directory, and what follows. Only this module judges directories.

Whoever may write to a directory may put sockets there, and so register plugins (fault 3). A directory below a root is
judged like the root, by owner and mode, at each look.

A trusted user may also own a directory below a root. Each process that listens there is judged at each connection, and
nothing is opened through a link, so the user can only register plugins of their own. But an owner can remove what
others have put there, and take the name of a plugin that is gone. So plugins of other trusted users are not accepted
there.
"""

from __future__ import annotations

import collections
import posixpath
import stat
from collections.abc import Callable, Iterable

from ..values import value
from ..words import DirectoryCondition
from .users import listener

__all__ = ["DirectoryCondition"]  # re-exported

#: The most directories of a root that are reported by name; all are counted.
MAX_REPORTED = 16


@value
class Access:
    """Who may write to a directory."""

    mode: int
    owner: int
    ours: bool
    #: Whether the owner is outside of the daemon's user namespace: root of the host, or any other user there.
    unmapped: bool = False

    @property
    def is_trusted(self) -> bool:
        """Whether the owner is root or the user of the daemon."""
        return self.ours or self.owner == 0


@value
class DirectoryReport:
    """A directory with a problem."""

    path: str
    condition: DirectoryCondition
    reason: str


#: Whether plugins of a user who is neither root nor the daemon's may register.
Trusts = Callable[[int], bool]


def trusts_nobody(_: int) -> bool:
    """Trust only root and the user of the daemon."""
    return False


def judge(
    path: str, access: Access, *, is_root: bool, trusts: Trusts = trusts_nobody, above: int | None = None
) -> DirectoryReport | None:
    """Return the problem of the directory at ``path``; None if there is none.

    ``above`` is the result of :func:`trusted_owner` for the directory above it.
    """
    problem = root_insecurity(path, access) if is_root else insecurity(path, access, trusts, above)
    if problem is not None:
        return DirectoryReport(path, DirectoryCondition.INSECURE, problem)
    if access.mode & stat.S_IWGRP:
        reason = f"its group may write to {path}, and so register plugins: run 'chmod g-w {path}', unless that is meant"
        return DirectoryReport(path, DirectoryCondition.GROUP_WRITABLE, reason)
    return None


def root_insecurity(path: str, access: Access) -> str | None:
    """Return why the root ``path`` is insecure, and what to do; None if it is not."""
    allow = "allow it with --insecure-root"
    if access.mode & stat.S_IWOTH:
        if access.ours and not access.mode & stat.S_ISVTX:
            return f"everybody may write to the root {path}: run 'chmod o-w {path}', or {allow}"
        # A directory such as /tmp is shared on purpose: other programs need its mode.
        own = f"{path.rstrip('/')}/plugins"
        return (
            f"everybody may write to the root {path}: make a directory of your own with 'mkdir -m 0755 {own}' and name"
            f" that with --root, or {allow}"
        )
    if not access.is_trusted:
        return (
            f"the root {path} belongs to {_owner_of(access)}: name a directory of root or of this user with --root, or"
            f" {allow}"
        )
    return None


def insecurity(path: str, access: Access, trusts: Trusts = trusts_nobody, above: int | None = None) -> str | None:
    """Return why the directory ``path`` below a root is insecure, and what to do; None if it is not."""
    owner, allow = access.owner, "or allow all of the root with --insecure-root"
    closed = "and nothing new below it is taken"
    if not (access.is_trusted or trusts(owner)):
        return (
            f"{path} belongs to user {owner}, {closed}: run plugind with --trust-uid {owner} if that user's plugins"
            f" belong there, 'chown 0 {path}' if they do not and you trust what is in it, {allow}"
        )
    if not access.is_trusted and above not in (None, owner):
        return (
            f"{path} belongs to user {owner} and lies in a directory of user {above}, who could replace it, {closed}:"
            f" make it in a directory of root, {allow}"
        )
    if access.mode & stat.S_IWOTH:
        return f"everybody may write to {path}, {closed}: run 'chmod o-w {path}', {allow}"
    return None


def trusted_owner(access: Access, above: int | None) -> int | None:
    """Return the trusted user who owns the directory or one above it; None if only root and the daemon's user do."""
    return above if above is not None or access.is_trusted else access.owner


def misplaced(owner: int | None, uid: int, pid: int) -> str | None:
    """Return why process ``pid`` of a trusted user may not listen in a directory of ``owner``; None if it may.

    ``owner`` is the trusted user who owns a directory above the socket, if any. Do not call this for root and the user
    of the daemon, who may listen everywhere.
    """
    if owner is None or owner == uid:
        return None
    return (
        f"{listener(uid, pid)}; it is in a directory of user {owner}, who could remove it and take its name: move it to"
        " a directory of root, or of its own user"
    )


def between(root: str, path: str) -> list[str]:
    """Return the directories below ``root`` in which ``path`` lies, from the top."""
    *names, _ = path[len(root) :].strip("/").split("/")
    return [posixpath.join(root, *names[:number]) for number in range(1, len(names) + 1)]


def insecurity_above(path: str, access: Access) -> str | None:
    """Return why others can replace the entries of the directory ``path``; None if they cannot.

    With the sticky bit only the owners of an entry and of the directory can replace it, and both are judged. A symbolic
    link has an owner and no mode.

    In a user namespace, files of the host's root, such as ``/`` and ``/run``, belong to no user there. So an unmapped
    owner is taken for root of the host, unless others may write.
    """
    if access.unmapped and access.mode & (stat.S_IWGRP | stat.S_IWOTH) and not access.mode & stat.S_ISVTX:
        return f"others may write to {path}, which belongs to {_owner_of(access)}"
    if not (access.is_trusted or access.unmapped):
        return f"{path} belongs to user {access.owner}"
    if access.mode & stat.S_IWOTH and not access.mode & stat.S_ISVTX:
        return f"everybody may write to {path}"
    return None


def _owner_of(access: Access) -> str:
    outside = ", which stands for all users whom this user namespace does not map" if access.unmapped else ""
    return f"user {access.owner}{outside}"


def root_insecurity_above(root: str, path: str, access: Access) -> str | None:
    """Return why the directory ``path`` above ``root`` makes it insecure, and what to do (fault 3)."""
    problem = insecurity_above(path, access)
    if problem is None:
        return None
    mend = f"run 'chmod o-w {path}', name" if access.is_trusted else "name"
    return (
        f"{problem}, and so others may replace the root {root}: {mend} a directory with --root above which nobody but"
        " root and this user may write, or allow it with --insecure-root"
    )


def count(reports: Iterable[DirectoryReport]) -> tuple[tuple[DirectoryCondition, int], ...]:
    """Return how many ``reports`` there are of each condition."""
    found = collections.Counter(report.condition for report in reports)
    return tuple((condition, found[condition]) for condition in DirectoryCondition if found[condition])


def worst(reports: Iterable[DirectoryReport]) -> tuple[DirectoryReport, ...]:
    """Return at most :data:`MAX_REPORTED` of ``reports``, worst first."""
    order = [*DirectoryCondition]
    return tuple(sorted(reports, key=lambda report: (order.index(report.condition), report.path))[:MAX_REPORTED])
