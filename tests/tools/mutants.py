"""Check the tests by mutation.

    python -m tests.tools.mutants [--module M --tests T ...] [--limit N] [--seed S]

A mutant of a module has one small change (see :mod:`tests.tools.mutations`). The tests of its room run against each
mutant in a separate process, on a private copy of the last commit. A mutant is *killed* if a test fails, and *timed
out* if the tests do not end. A mutant that survives is printed: either a test is missing, or the change has no
effect. Without ``--module``, all of :data:`MODULES` are checked. The exit code is 1 if the tests fail without any
change.

Each mutant runs in a fork of a process that has imported the libraries but nothing of plugind, which saves most of the
time. The copy precedes the checkout on the import path. To prove that, the first mutant is one that cannot be imported.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import attrs
import hypothesis
import pytest

from plugind.tests.tools.mutations import Mutation, mutations

_PRELOADED: Final = (
    "attrs", "google.protobuf.descriptor_pb2", "grpclib.client", "grpclib.server", "h11", "h2.connection", "hpack",
    "hypothesis.stateful", "hypothesis.strategies", "prometheus_client", "rich.table", "trio", "trio.testing",
)  # fmt: skip
#: Limit of the address space of one mutant, in bytes, since some mutated loops grow a list.
_MEMORY: Final = 3 << 30

#: The modules that are checked by default.
MODULES: Final = (
    "protocol/registration/failures.py",
    "protocol/registration/following.py",
    "protocol/registration/phases.py",
    "protocol/world/worlds.py",
    "protocol/world/claims.py",
    "protocol/backoff.py",
    "protocol/plugins/info.py",
    "protocol/discovery/sockets.py",
    "protocol/discovery/watches.py",
    "protocol/status/view.py",
    "protocol/status/metrics.py",
    "protocol/status/json.py",
    "protocol/wire/hpack_cache.py",
    "protocol/wire/grpc.py",
    "protocol/wire/outcomes.py",
    "protocol/wire/http2.py",
    "protocol/wire/control.py",
    "protocol/wire/sending.py",
    "protocol/wire/frames.py",
    "protocol/wire/responses.py",
    "protocol/wire/conversation.py",
    "protocol/wire/learning.py",
    "protocol/wire/metadata.py",
    "protocol/text.py",
    "protocol/logs/lines.py",
    "protocol/settings/config.py",
    "actors/registration/dial_slots.py",
    "actors/registration/actor.py",
    "actors/registration/inbox.py",
    "actors/registration/mail.py",
    "actors/registration/reports.py",
    "actors/registration/timers.py",
    "actors/registration/tries.py",
    "actors/registration/registrations.py",
    "actors/world/reconciler.py",
    "actors/handlers/served.py",
    "actors/handlers/calls.py",
    "actors/health/watchdog.py",
    "actors/node/supervision.py",
    "actors/messaging/mailbox.py",
    "actors/discovery/roots.py",
    "actors/discovery/root_lock.py",
)


def tests_of(root: Path, module: str) -> list[str]:
    """Return the tests of the room of ``module``, those with its name first, since one failing test is enough.

    Those of rules are followed by those of the actors that go by them.
    """
    floor, *room, name = Path(module).with_suffix("").parts
    floors = dict.fromkeys((floor, "actors")) if room else (floor,)
    found = [path for one in floors for path in sorted(root.joinpath("tests", one, *room).glob("test_*.py"))]
    found.sort(key=lambda path: not path.stem.startswith(f"test_{name}"))
    return [str(path.relative_to(root)) for path in found]


@attrs.frozen
class Bench:
    """A private copy of the project in which tests run."""

    root: Path
    #: The folder in which the copy is named ``plugind``.
    links: Path

    def run(self, tests: list[str], seconds: float) -> str:
        """Run the tests in a fork; return ``passed``, ``failed`` or ``timed out``."""
        pid = os.fork()
        if not pid:
            self._run_child(tests)
        ends = time.monotonic() + seconds
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > ends:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return "timed out"
            time.sleep(0.01)
        return "failed" if ended[1] else "passed"

    def _run_child(self, tests: list[str]) -> None:
        code = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            for name in [name for name in sys.modules if name.split(".")[0] in ("plugind", "benchmarks", "tests")]:
                del sys.modules[name]
            sys.path[:] = [str(self.links), *(path for path in sys.path if path)]
            sys.path_importer_cache.clear()
            os.environ["PYTHONPATH"] = str(self.links)
            os.chdir(self.root)
            log = os.open(self.links / "log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            options = [
                "-x",
                "-q",
                "-m",
                "not extended",
                "-p",
                "no:cacheprovider",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
            ]
            code = int(pytest.main([*options, *tests]))
        finally:
            sys.stdout.flush()
            os._exit(code)


@attrs.define
class Tally:
    """The outcomes of the mutants of one module."""

    module: str
    mutants: int
    outcomes: Counter[str] = attrs.Factory(Counter)
    survivors: list[str] = attrs.Factory(list)


class BaselineError(Exception):
    """The tests fail without a change, or pass when the module cannot be imported."""


def check(bench: Bench, module: str, tests: list[str], limit: int, seed: int, again: frozenset[str]) -> Tally:
    """Run the tests of ``module`` against its mutants, or against a sample if there are more than ``limit``.

    If ``again`` is not empty, only the mutants that it lists run, even if their line numbers have changed.

    Raises:
      BaselineError: if the tests fail without a change, or pass when the module cannot be imported.
    """
    path = bench.root / module
    original = path.read_text()
    tree = ast.parse(original)
    every = [one for one in mutations(tree) if not again or _without_line(_described(module, one)) in again]
    chosen = sorted(random.Random(seed).sample(every, min(limit, len(every))), key=lambda mutation: mutation.line)
    tally = Tally(module, len(every))
    seconds = _baseline(bench, path, tests)
    for number, mutation in enumerate(chosen, start=1):
        path.write_text(mutation.source(tree))
        outcome = bench.run(tests, seconds)
        tally.outcomes[outcome] += 1
        if outcome == "passed":
            tally.survivors.append(_described(module, mutation))
            print(tally.survivors[-1], flush=True)
        if sys.stderr.isatty():
            print(f"\r{module} {number}/{len(chosen)}", end="\r", file=sys.stderr, flush=True)
    path.write_text(original)
    return tally


def _baseline(bench: Bench, path: Path, tests: list[str]) -> float:
    """Return the time limit of a mutant in seconds. Remove compiled files of the module, which could hide a change."""
    sys.dont_write_bytecode = False
    original = path.read_text()
    began = time.monotonic()
    if bench.run(tests, 300) != "passed":
        raise BaselineError(f"{path.name}: its tests fail:\n{(bench.links / 'log').read_text()[-3000:]}")
    seconds = time.monotonic() - began
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()
    path.write_text("raise RuntimeError('a mutant that cannot be imported')\n")
    if bench.run(tests, 300) == "passed":
        raise BaselineError(f"{path.name}: its tests do not import it")
    path.write_text(original)
    return max(8.0, 4 * seconds)


def _described(module: str, mutation: Mutation) -> str:
    return f"{module}:{mutation.line}: `{mutation.before}` → `{mutation.after}`"


def _without_line(described: str) -> str:
    """Return the description of a survivor without its line number."""
    module, _, rest = described.partition(":")
    return f"{module}: {rest.partition(':')[2].strip()}"


def _copied(folder: Path, revision: str) -> Bench:
    root, links = folder / "copy", folder / "links"
    root.mkdir()
    links.mkdir()
    (links / "plugind").symlink_to(root)
    done = subprocess.run(["git", "archive", revision], check=True, stdout=subprocess.PIPE)
    # Debian 12's tarfile has no filter of members yet.
    subprocess.run(["tar", "--extract", f"--directory={root}"], check=True, input=done.stdout)
    return Bench(root, links)


def _table(tallies: list[Tally]) -> str:
    lines = ["| module | mutants | run | killed | timed out | survived |", "|---|---|---|---|---|---|"]
    for tally in tallies:
        outcomes = tally.outcomes
        lines.append(
            f"| {tally.module} | {tally.mutants} | {outcomes.total()} | {outcomes['failed']} "
            f"| {outcomes['timed out']} | {outcomes['passed']} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Check the requested modules and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", help="a path from the root of the checkout; may be repeated")
    parser.add_argument("--tests", nargs="+", help="their paths; by default those of the room of the module")
    parser.add_argument("--limit", type=int, default=60, help="the most mutants of one module (default: 60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--revision", default="HEAD", help="the commit to check (default: HEAD)")
    parser.add_argument("--again", type=Path, help="a file with printed survivors: run only these")
    asked = parser.parse_args()
    again = frozenset(map(_without_line, asked.again.read_text().splitlines()) if asked.again else ())
    for name in _PRELOADED:
        importlib.import_module(name)
    # There is no need to shrink a failing example.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", phases=phases, database=None, deadline=None, derandomize=True)
    hypothesis.settings.load_profile("mutants")
    tallies: list[Tally] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        bench = _copied(Path(folder), asked.revision)
        for module in asked.module or MODULES:
            tests = asked.tests or tests_of(bench.root, module)
            try:
                tallies.append(check(bench, module, tests, asked.limit, asked.seed, again))
            except BaselineError as error:
                print(error, file=sys.stderr)
                failed = True
    print(_table(tallies))
    return failed


if __name__ == "__main__":
    sys.exit(main())
