"""The settings that all tests share."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from plugind.tests.fork_server import ForkingPopen

pytest_plugins = ["plugind.actors.simulation.pytest_plugin"]

# No property is about time, and on a busy machine an example takes as long as it takes. The profile that is loaded
# stays otherwise: Hypothesis has one of its own for CI.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

#: The signals that a daemon handles, and that it blocks when it has stopped.
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def pytest_configure(config: pytest.Config) -> None:
    """Leave out extended tests if no path is given, and let the processes that tests start react to Ctrl-C.

    A shell without job control starts background jobs with SIGINT ignored, and child processes inherit that.
    """
    # The workers of xdist are given paths, and the options of this process.
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr:
        config.option.markexpr = "not extended"
    # The daemons of tests are configured by their tests, and not by a file of this machine.
    os.environ["PLUGIND_CONFIG"] = os.devnull
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of processes for ``-n auto``: three for each core, since end-to-end tests mostly wait."""
    del config
    return 3 * len(os.sched_getaffinity(0))


def pytest_collection(session: pytest.Session) -> None:
    """Import a share of the modules in each process of xdist before it reads them all.

    In a fresh clone nothing is compiled yet, and processes that read the same modules in the same order would each
    compile every one of them.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or not session.config.option.markexpr:
        return
    tests = Path(__file__).parent
    paths = sorted(tests.rglob("test_*.py"))[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]
    for path in paths:
        # The collection reads the module again, and reports this.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(("plugind", "tests", *path.relative_to(tests).with_suffix("").parts)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spread the modules of tests/end_to_end among the others in the processes of xdist.

    Each begins with an equal part of the list. Tests with real processes mostly wait, and the others mostly compute.
    """
    if not hasattr(config, "workerinput"):
        return
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    places: list[tuple[float, list[pytest.Item]]] = []
    for waits in (False, True):
        kind = [tests for tests in modules if ("end_to_end" in tests[0].path.parts) is waits]
        places += [((number + 0.5) / len(kind), tests) for number, tests in enumerate(kind)]
    items[:] = chain.from_iterable(tests for _, tests in sorted(places, key=itemgetter(0)))


@pytest.fixture(autouse=True)
def _unchanged_signals() -> Iterator[None]:
    """Undo what ``plugind run`` does to the signals of its process, if a test runs it in this one.

    Blocked signals are inherited: the processes that later tests start could not be interrupted or terminated.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.fixture(scope="session", autouse=True)
def _forks() -> Iterator[None]:
    """Fork the processes of ``python -m plugind`` that tests start."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", ForkingPopen)
        yield
    ForkingPopen.close()


@pytest.fixture
def real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the test start an interpreter for each process, since it is about its start."""
    monkeypatch.setattr(subprocess, "Popen", ForkingPopen.__base__)


@pytest.fixture(params=["the disk", "tmpfs"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on each kind of file system that a root lies on."""
    if request.param == "the disk":
        yield tmp_path
        return
    if not os.path.isdir("/dev/shm"):
        pytest.skip("needs /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)
