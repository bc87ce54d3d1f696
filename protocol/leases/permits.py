"""What is taken from the answer of a plugin that somebody else runs than root, the user of the daemon and the asker.

Such a plugin has a user whom the operator trusts with a resource, and not with the account of whoever asks for it. A
variable such as ``LD_PRELOAD`` or a mount over ``/etc`` would give it that. No list of dangerous names is complete, and
a path that is checked may be another one when the container starts. So nothing is taken but device nodes, and what the
operator permits.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import attrs

from ..errors import ConfigError
from ..plugins.info import wrong_with_resource
from ..text import cut, quoted
from .answers import AnswerError
from .values import Answer, Lease

#: The setting that an error names.
SETTING: Final = "leases.permitted"
#: Characters of names of variables that are shown.
_SHOWN: Final = 200
_KIND: Final = re.compile(r"mounts|cdi|annotations|env=[A-Za-z_]\w*", re.ASCII)


def check_permits(permits: Collection[str]) -> None:
    """Check how permits are written.

    Raises:
      ConfigError: if one is none.
    """
    for permit in permits:
        resource, _, kind = permit.partition(":")
        if wrong_with_resource(resource) is not None or not _KIND.fullmatch(kind):
            raise ConfigError(
                f"{quoted(cut(permit, _SHOWN))} is no permit: give RESOURCE:env=NAME, RESOURCE:mounts, RESOURCE:cdi or"
                " RESOURCE:annotations"
            )


def permitted(answer: Answer, resource: str, permits: Collection[str]) -> tuple[Answer, tuple[str, ...]]:
    """Return what of an answer is taken, and the names of the variables that are left out.

    Raises:
      AnswerError: if it has mounts, CDI names or annotations that are not permitted: a container without them would not
        be what the plugin has prepared.
    """
    for kind, words in _named(answer).items():
        if f"{resource}:{kind}" not in permits:
            raise AnswerError(f"it names {words}, and {SETTING} does not have {resource}:{kind}")
    env = {name: text for name, text in answer.env.items() if f"{resource}:env={name}" in permits}
    taken = Answer(env, answer.mounts, answer.nodes, answer.annotations, answer.cdi_devices)
    return taken, tuple(name for name in answer.env if name not in env)


def _named(answer: Answer) -> dict[str, str]:
    """Return what an answer has that changes more of a container than its devices, with words for it."""
    has: tuple[tuple[str, str, Any], ...] = (
        ("mounts", "mounts", answer.mounts),
        ("cdi", "CDI devices", answer.cdi_devices),
        ("annotations", "annotations", answer.annotations),
    )
    return {kind: words for kind, words, found in has if found}


def from_daemon(lease: Lease, uid: int) -> Lease:
    """Return what is taken of a lease from a daemon of user ``uid``, who is neither root nor this user.

    Raises:
      AnswerError: if it names more than devices and variables.
    """
    answer = lease.answer or Answer()
    if named := ", ".join(_named(answer).values()):
        raise AnswerError(
            f"the daemon runs as user {uid}, who is neither root nor you, and the lease {lease.id} names {named}, so it"
            " is not used, and is released if it is new: ask as that user, or ask a daemon of root"
        )
    if not answer.env:
        return lease
    words = f"the daemon runs as user {uid}, who is neither root nor you: the variables of its plugins are left out"
    return attrs.evolve(lease, answer=Answer(nodes=answer.nodes), warnings=(*lease.warnings, words))


def left_out(resource: str, names: Collection[str], whose: str) -> str:
    """Return the words for variables that are left out."""
    shown = quoted(cut(", ".join(names), _SHOWN))
    return f"{resource}: variables of a device plugin of {whose} are left out, as {SETTING} does not have them: {shown}"
