"""The pytest plugin: the fixture ``node``, a simulated node in virtual time, for tests of pytest-trio.

::

    async def test_our_driver_survives_a_slow_start(node: SimulatedNode) -> None:
        plugin = node.plug("csi.sock", FakePlugin("CSIPlugin", "csi.example.com", get_info_fails=2))
        await node.settled()
        assert node.state("csi.sock") == "registered"

``pytest_plugins = ["plugind.actors.simulation.pytest_plugin"]`` in a ``conftest.py`` loads it. Two more fixtures can be
overridden in a ``conftest.py`` or a test module: ``plugind_config`` (a
:class:`~plugind.protocol.settings.config.Config`) and ``plugind_handlers`` (handlers by plugin type)::

    @pytest.fixture
    def plugind_handlers() -> dict[str, Handler]:
        return {"Colour": ColourHandler()}

A test that uses ``node`` runs under a :class:`trio.testing.MockClock` that jumps by itself. A test with its own clock
(``autojump_clock``, ``mock_clock``) gets that one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TypeVar

import pytest
import trio.abc
import trio.testing

from ...protocol.settings.config import Config
from ..handlers.handler import Handler
from .daemon import RunningDaemon, daemon
from .node import DEFAULT_CONFIG, SimulatedNode

_R = TypeVar("_R")
_MARK = "_plugind_virtual_time"


@pytest.fixture
def plugind_config() -> Config:
    """The configuration of ``node``, by default without jitter and with seed 0. Override it."""
    return DEFAULT_CONFIG


@pytest.fixture
def plugind_handlers() -> Mapping[str, Handler]:
    """The handlers of ``node`` besides the built-in ones, by plugin type, by default none. Override it."""
    return {}


async def _node(plugind_config: Config, plugind_handlers: Mapping[str, Handler]) -> AsyncIterator[SimulatedNode]:
    """A running :class:`~plugind.actors.simulation.node.SimulatedNode`, into which the test plugs plugins."""
    async with SimulatedNode(plugind_config, handlers=plugind_handlers) as running:
        yield running


@pytest.fixture
def plugind_daemon() -> Iterator[RunningDaemon]:
    """A real daemon, which plugins in any language register with; see :func:`plugind.testing.daemon`."""
    with daemon() as running:
        yield running


# pytest-trio is to run it, whatever mode the project of the test has chosen.
setattr(_node, "_force_trio_fixture", True)  # noqa: B010
setattr(_node, _MARK, True)
node = pytest.fixture(name="node")(_node)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests with our ``node`` in virtual time: pytest-trio finds a clock only among a test's own arguments."""
    for item in items:
        if _uses_our_node(item):
            item.add_marker(pytest.mark.trio(run=_run_in_virtual_time), append=False)


def _uses_our_node(item: pytest.Item) -> bool:
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).get("node")
    return definitions is not None and hasattr(definitions[-1].func, _MARK)


def _run_in_virtual_time(
    function: Callable[..., Awaitable[_R]], *, clock: trio.abc.Clock | None = None, **options: object
) -> _R:
    clock = clock or trio.testing.MockClock(autojump_threshold=0)
    return trio.run(function, clock=clock, **options)  # type: ignore[arg-type]  # whatever pytest-trio passes on
