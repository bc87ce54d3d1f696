"""``plugind.testing``, the public module of the test kit."""

from __future__ import annotations

import inspect

import pytest

import plugind.testing
from plugind.actors.simulation import pytest_plugin


def test_no_name_of_the_test_kit_is_public_by_accident() -> None:
    public = {name for name in vars(plugind.testing) if not name.startswith("_")}
    assert public - set(plugind.testing.__all__) == {"annotations"}


def test_the_fixtures_have_the_names_that_are_published() -> None:
    fixtures = {
        getattr(member, "name", None) or name
        for name, member in vars(pytest_plugin).items()
        if type(member).__name__ == "FixtureFunctionDefinition"
    }
    assert fixtures == {"node", "plugind_config", "plugind_daemon", "plugind_handlers"}


CLASSES = [name for name in plugind.testing.__all__ if inspect.isclass(getattr(plugind.testing, name))]


@pytest.mark.parametrize("name", CLASSES)
def test_each_public_class_has_a_docstring(name: str) -> None:
    assert vars(getattr(plugind.testing, name)).get("__doc__")
