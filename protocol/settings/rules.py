"""The rules by which a node takes plugins: trusted users, roots, and directories for endpoints.

A node reports them on its status socket, and ``plugind probe`` applies them.
"""

from __future__ import annotations

import attrs

from ..errors import ConfigError
from ..status.json import Json
from ..text import encodable
from ..trust.users import AS_ROOT, Trust, TrustedUser, Users, parse_trusted_user
from ..values import value
from .config import Root


@value
class Rules:
    """Whose plugins a node takes, and from where."""

    #: The users who may register; ``users`` is what the node's system reports about users.
    trust: Trust = attrs.field(factory=Trust)
    users: Users = AS_ROOT
    #: The directories in which plugins are discovered.
    roots: tuple[Root, ...] = ()
    #: The directories for endpoints.
    endpoint_directories: tuple[str, ...] = ()

    def trusts(self, uid: int) -> bool:
        """Whether plugins of this user may register."""
        return self.trust.includes(uid, self.users)

    def distrust(self, uid: int, pid: int) -> str | None:
        """Return why process ``pid`` of this user is not trusted, with advice; None if it is trusted (fault 40)."""
        return self.trust.refusal(uid, pid, self.users)


def rules_to_json(rules: Rules) -> dict[str, Json]:
    """Return the rules for a client, with uids instead of the names of users."""
    return {
        "uid": rules.users.own,
        "overflow_uid": rules.users.overflow,
        "trusted_uids": [uids_of(entry, rules.users) for entry in rules.trust.uids],
        "roots": [
            {"root": encodable(root.path), "deprecated": root.deprecated, "insecure": root.insecure}
            for root in rules.roots
        ],
        "endpoint_directories": [encodable(path) for path in rules.endpoint_directories],
    }


def uids_of(entry: TrustedUser, users: Users) -> str:
    """Return an entry of a policy as a uid or a range of uids."""
    match entry:
        case str():
            return str(users.by_name[entry])
        case (first, last):
            return f"{first}-{last}"
        case _:
            return str(entry)


def rules_from_json(answer: object) -> Rules:
    """Return the rules in the answer of a node.

    Raises:
      ValueError: if it has none.
    """
    try:
        return _rules(answer)
    except (TypeError, KeyError, AttributeError, ConfigError) as error:
        raise ValueError(f"these are not the rules of a daemon: {error!r}") from error


def _rules(answer: object) -> Rules:
    if not isinstance(answer, dict):
        raise TypeError("no object")
    overflow = answer["overflow_uid"]
    return Rules(
        Trust(tuple(parse_trusted_user(str(entry)) for entry in answer["trusted_uids"])),
        Users(int(answer["uid"]), None if overflow is None else int(overflow)),
        tuple(Root(str(root["root"]), bool(root["deprecated"]), bool(root["insecure"])) for root in answer["roots"]),
        tuple(map(str, answer["endpoint_directories"])),
    )
