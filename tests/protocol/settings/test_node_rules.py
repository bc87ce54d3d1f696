"""The rules of a node, as its status socket shows them."""

from __future__ import annotations

import json

import pytest

from plugind.protocol.settings.config import Root
from plugind.protocol.settings.rules import Rules, rules_from_json, rules_to_json
from plugind.protocol.trust.users import Trust, Users

RULES = Rules(
    Trust((1000, (2000, 2999), "csi")),
    Users(own=7, overflow=65534, by_name={"csi": 31}),
    (Root("/r"), Root("/old", deprecated=True, insecure=True)),
    ("/r", "/plugins"),
)


def test_who_reads_the_rules_judges_as_the_node() -> None:
    """Fault 40: names of users are replaced by uids, since the reader may know other users."""
    read = rules_from_json(json.loads(json.dumps(rules_to_json(RULES))))
    assert (read.roots, read.endpoint_directories) == (RULES.roots, RULES.endpoint_directories)
    for uid in (0, 7, 31, 32, 999, 1000, 2000, 2999, 3000, 65534):
        assert read.trusts(uid) == RULES.trusts(uid)
        assert read.distrust(uid, 5) == RULES.distrust(uid, 5)
        assert read.trusts(uid) == (uid in (0, 7, 31, 1000, 2000, 2999))
    assert read.users.is_privileged(7)


@pytest.mark.parametrize(
    "answer", [None, [], {}, {**rules_to_json(RULES), "uid": "me"}, {**rules_to_json(RULES), "roots": [1]}]
)
def test_another_answer_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match=r"rules of a daemon|invalid literal"):
        rules_from_json(answer)
