"""The place of a probed socket: its root and its directories, judged by the code of the daemon."""

from __future__ import annotations

import os

from ...protocol.settings.config import Root
from ...protocol.settings.rules import uids_of
from ...protocol.trust.directories import DirectoryCondition, between, misplaced
from ..io.beneath import root_of
from ..io.unix_socket import Credentials
from ..trust.directories import judge_on_the_way, owner_on_the_way
from .findings import Fate, Findings, ProbeOptions, Verdict


def root_at(path: str, options: ProbeOptions) -> Root:
    """Return the root of the socket at the absolute ``path``, or the probable one."""
    roots = {root.path: root for root in options.roots}
    root = root_of(path, roots)
    return Root(_probable_root(path), options.deprecated, options.insecure) if root is None else roots[root]


def _probable_root(path: str) -> str:
    """Return the probable root of a socket: the kubelet's directory, or that of the socket."""
    above = os.path.dirname(path)
    kubelets, registry, _ = above.partition("/plugins_registry/")
    return kubelets + registry.rstrip("/") if registry else above


def as_discovered(path: str, options: ProbeOptions) -> str:
    """Return the absolute path at which a daemon finds the socket, which can differ from the given path."""
    whole = os.path.abspath(path)
    real = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
    roots = [root.path for root in options.roots]
    return real if root_of(whole, roots) is None and root_of(real, roots) is not None else whole


def say_whose_rules(found: Findings, options: ProbeOptions) -> None:
    """Record the source of the rules, if a daemon was asked for them."""
    if options.asked is None or options.strict:
        return
    if not options.answered:
        detail = f"the daemon at {options.asked} is older and does not show them: those of the options are applied"
        found.note("rules", Verdict.WARNING, detail)
        return
    users = dict.fromkeys(("0", str(options.users.own), *(uids_of(uid, options.users) for uid in options.trust.uids)))
    roots = (root.path + (", insecure or not" if root.insecure else "") for root in options.roots)
    detail = (
        f"from the daemon at {options.asked}: plugins of the users {', '.join(users)}, in {' and '.join(roots)}, with"
        f" endpoints in {', '.join(options.endpoint_directories)}"
    )
    found.note("rules", Verdict.OK, detail)


def check_place(found: Findings, path: str, options: ProbeOptions) -> None:
    """Check the directories above ``path`` (fault 3), which the kubelet does not."""
    if options.strict:
        return
    root = root_at(path, options)
    if options.roots and root not in options.roots:
        named = ", ".join(allowed.path for allowed in options.roots)
        detail = f"{path} is in no root of the daemon, {named}: move it there, or run plugind with --root {root.path}"
        found.wrong("root", detail, Fate.IGNORED)
    hidden = [directory for directory in between(root.path, path) if os.path.basename(directory).startswith(".")]
    if hidden:
        found.wrong("directory", f"{hidden[0]} begins with a dot, so that daemons ignore it", Fate.IGNORED)
    if root.insecure:
        return
    try:
        for report in judge_on_the_way(root.path, path, options.trusts, options.users.own):
            detail = f"directory {report.path} is {report.condition}: {report.reason}"
            if report.condition is DirectoryCondition.INSECURE:
                found.wrong("directory", detail, Fate.IGNORED)
            else:
                found.note("directory", Verdict.WARNING, detail)
    except OSError as error:
        found.note("directory", Verdict.WARNING, f"cannot judge the directories of {path}: {error.strerror}")


def distrust(peer: Credentials, path: str, options: ProbeOptions) -> str | None:
    """Return why the process that listens on ``path`` is not trusted, or may not be there; None if it may."""
    if options.strict:
        return None
    refusal = options.trust.refusal(peer.uid, peer.pid, options.users)
    root = root_at(path, options)
    if refusal is not None or root.insecure or options.users.is_privileged(peer.uid):
        return refusal
    return misplaced(owner_on_the_way(root.path, path, options.users.own), peer.uid, peer.pid)
