"""The oracle of endpoints, for plugins of several users that name one endpoint."""

from __future__ import annotations

import attrs
import pytest

from plugind.protocol.plugins.info import Plugin
from plugind.tests.fuzz.endpoint_oracle import EndpointOracle

RED = Plugin("Colour", "red", "/drivers/one.sock", ("1.0.0",), "/plugins/a.sock", 5, privileged=True)
BLUE = Plugin("Colour", "blue", "/drivers/one.sock", ("1.0.0",), "/plugins/d.sock", 6, privileged=False)


@pytest.mark.parametrize(("privileged", "found"), [(True, []), (False, ["endpoint"])])
def test_a_plugin_that_was_admitted_first_may_be_registered_after_one_of_root_has_its_endpoint(
    privileged: bool, found: list[str]
) -> None:
    """Seed 282: it stands by then (fault 79). Nobody else takes an endpoint over."""
    violated: list[str] = []
    oracle = EndpointOracle(lambda rule, _: violated.append(rule), ("/drivers/",))
    oracle.validating(BLUE, [], [])
    oracle.registering(BLUE, [attrs.evolve(RED, privileged=privileged)])
    assert violated == found


def test_a_plugin_that_waits_for_its_handler_may_be_validated_after_another_has_come_to_serve_on_its_endpoint() -> None:
    """Seed 700114: its Validate waited 40 s for a Deregister that hung. It stands by then (fault 79)."""
    violated: list[str] = []
    oracle = EndpointOracle(lambda rule, _: violated.append(rule), ("/drivers/",))
    serving = attrs.evolve(RED, socket=RED.endpoint, privileged=False)
    oracle.validating(BLUE, [], [serving])
    oracle.validating(BLUE, [], [RED])
    assert violated == []
    oracle.validating(BLUE, [serving], [])
    oracle.validating(BLUE, [], [attrs.evolve(RED, privileged=False)])
    assert violated == ["endpoint", "endpoint"]
