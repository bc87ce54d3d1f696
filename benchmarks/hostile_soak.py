"""A soak: random mixtures of hostile plugins beside good ones, for as long as wanted, with an oracle of its own.

Each round starts a few kinds, with random numbers of plugins at random places, lets them do what they do while good
plugins are replaced, freezes or kills some of them, and then asks all to be calm. At that time the last word to each
plugin must agree with what the daemon shows. Then the hostile ones are removed, and the daemon must forget them: its
memory and descriptors must be what they were after the first rounds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from plugind.benchmarks.peers.daemon_process import DaemonProcess, plugind_run
from plugind.benchmarks.peers.hostile.kinds import KINDS
from plugind.benchmarks.peers.hostile.process import hostile_peers
from plugind.benchmarks.plugins.cheap_plugin import ServerOptions
from plugind.benchmarks.plugins.server_process import ServerProcess, cheap_server, scratch_directory
from plugind.benchmarks.report import soak_oracle
from plugind.benchmarks.report.soak_oracle import Rest
from plugind.protocol.settings.config import Timeouts

_BEAT = 0.05
#: Seconds between two looks at the daemon's health.
_LOOK = 1.0
#: Seconds in which a good plugin must be told, and in which the daemon must come to rest.
_PATIENCE = 15.0
#: How often what is wrong must be found before it is a violation.
_LOOKS = 5
#: Seconds of a mixture.
_MIXTURE = (4.0, 12.0)
#: The most kinds of one mixture, and the most plugins of each.
_KINDS, _PEERS = 4, 200
#: The share of the time that is warm-up.
_WARM_UP = 1 / 3
#: A log that is longer is cut (bytes).
_LOG = 50 << 20
#: Seconds beyond the grace period in which the daemon stops.
_STOP_SLACK = 1.0


class Violation(Exception):  # noqa: N818 - it is no error of the soak
    """The oracle found something that must not be."""


@attrs.frozen(kw_only=True)
class Conditions:
    """What a soak does; times are seconds."""

    seconds: float
    seed: int
    kinds: Sequence[str] = tuple(KINDS)
    most_peers: int = _PEERS
    good: int = 100
    rate: float = 5.0
    #: The shortest and the longest time of a mixture.
    mixture: tuple[float, float] = _MIXTURE
    daemon_core: int | None = None
    peers_core: int | None = None
    daemon_options: tuple[str, ...] = ()


@attrs.define
class _Group:
    """The hostile plugins of one process."""

    kind: str
    peers: int
    directory: Path
    server: ServerProcess
    killed: bool = False
    frozen: bool = False

    def owns(self, path: str) -> bool:
        """Whether ``path`` is one of theirs."""
        return path.startswith(f"{self.directory}/{self.kind}-")


class Soak:
    """The daemon, the good plugins, and the rounds."""

    def __init__(
        self, conditions: Conditions, root: Path, daemon: DaemonProcess, good: ServerProcess, say: Callable[[str], None]
    ) -> None:
        self._conditions = conditions
        self._root = root
        self._daemon = daemon
        self._good = good
        self._say = say
        self._random = random.Random(conditions.seed)
        self._began = time.monotonic()
        self._looked = self._began
        self._replaced = 0
        #: The indexes of the good plugins that stand, the oldest first, and the next new one.
        self._standing = deque(range(conditions.good))
        self._next = conditions.good
        self._bag: list[str] = []
        #: The kinds that had no turn yet, without which the warm-up is not over.
        self._fresh = set(conditions.kinds)
        #: The mixture of the present round, in words.
        self.mixture = ""
        self.rests: list[Rest] = []
        self.rounds = self.warm_rounds = 0

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> float:
        """Soak, stop the daemon in the midst of a last mixture, and return how long that took.

        Raises:
          Violation: if something is not as it must be.
          OSError: if the daemon does not answer.
        """
        while self._elapsed < self._conditions.seconds:
            self._round()
        with ExitStack() as stack:
            groups = self._mixture(stack)
            self._wait(self._conditions.mixture[0], groups)
            return self._stop()

    def _stop(self) -> float:
        began = time.monotonic()
        try:
            took = self._daemon.stop()
        except RuntimeError as error:
            self._daemon.kill()
            raise Violation(f"SIGTERM: {error}, after {time.monotonic() - began:.1f} s") from error
        if took > (allowed := Timeouts().stop_grace + _STOP_SLACK):
            raise Violation(f"the daemon took {took:.1f} s to stop, {allowed:g} are allowed")
        return took

    def _round(self) -> None:
        cpu, began = self._daemon.cpu_seconds(), time.monotonic()
        with ExitStack() as stack:
            groups = self._mixture(stack)
            self._wait(self._random.uniform(*self._conditions.mixture), groups)
            self._calm(groups)
        percent = (self._daemon.cpu_seconds() - cpu) / (time.monotonic() - began) * 100
        for group in groups:
            _remove(group)
        self._await_rest()
        self._check(soak_oracle.check_generations(self._good.report(), time.monotonic_ns(), _PATIENCE))
        if self._fresh or self._elapsed < self._conditions.seconds * _WARM_UP:
            self.warm_rounds = self.rounds + 1
        self._fresh.difference_update(group.kind for group in groups)
        self._check(soak_oracle.check_flat(self.rests[: self.warm_rounds], self.rests[self.warm_rounds :]))
        self.rounds += 1
        self._report(percent)

    def _mixture(self, stack: ExitStack) -> list[_Group]:
        groups = []
        for kind in self._draw():
            peers = self._random.randint(1, self._conditions.most_peers)
            directory = self._root / self._random.choice(["", f"sub-{self.rounds}-{kind}"])
            directory.mkdir(exist_ok=True)
            core = self._conditions.peers_core
            process = hostile_peers(kind, directory, peers, core=core, idle=core is not None, wait=False)
            groups.append(_Group(kind, peers, directory, stack.enter_context(process)))
        self.mixture = ", ".join(f"{group.peers} {group.kind}" for group in groups)
        return groups

    def _draw(self) -> list[str]:
        """Draw kinds from a bag, so that each comes before any comes again."""
        kinds: list[str] = []
        for _ in range(self._random.randint(1, min(_KINDS, len(self._conditions.kinds)))):
            if not self._bag:
                self._bag = self._random.sample(list(self._conditions.kinds), len(self._conditions.kinds))
            if self._bag[-1] in kinds:
                break
            kinds.append(self._bag.pop())
        return kinds

    def _wait(self, seconds: float, groups: Sequence[_Group] = ()) -> None:
        """Replace good plugins, and look after the daemon, while hostile ones do what they do."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._beat()
            if groups and self._random.random() < _BEAT / seconds:
                self._disturb(self._random.choice(groups))

    def _disturb(self, group: _Group) -> None:
        """Freeze a process, resume it, or kill it, so that its sockets are left behind."""
        if group.killed:
            return
        group.killed = not group.frozen and self._random.random() < 0.3
        group.frozen = not group.frozen and not group.killed
        os.kill(group.server.pid, signal.SIGKILL if group.killed else _FREEZE[group.frozen])

    def _beat(self) -> None:
        time.sleep(_BEAT)
        while self._replaced < int(self._elapsed * self._conditions.rate):
            self._replace()
            self._replaced += 1
        if time.monotonic() - self._looked >= _LOOK:
            self._looked = time.monotonic()
            ready, healthy = self._daemon.get("/readyz")[0], self._daemon.get("/healthz")[0]
            self._check(soak_oracle.check_health(self._daemon.ended, ready, healthy))

    def _replace(self) -> None:
        """Replace the oldest good plugin, at its path or at a new one."""
        oldest = self._standing.popleft()
        again = self._random.random() < 0.5
        index = oldest if again else self._next
        self._next += not again
        self._good.remove(oldest, 1)
        self._good.create(index, 1)
        self._standing.append(index)

    def _calm(self, groups: Sequence[_Group]) -> None:
        """Let all plugins be calm, and wait until what they heard is what the daemon shows."""
        for group in groups:
            if group.frozen and not group.killed:
                os.kill(group.server.pid, signal.SIGCONT)
                group.frozen = False
        living = [group for group in groups if not group.killed]
        for group in living:
            group.server.ask("calm")
        self._await(lambda: self._wrong_words(groups, living))
        for group in living:
            counts = group.server.counts()
            self._check(soak_oracle.check_refused(group.kind, int(counts["notified"])))

    def _wrong_words(self, groups: Sequence[_Group], living: Sequence[_Group]) -> dict[str, str]:
        words: dict[str, bool] = {}
        for group in living:
            group.server.ask("words")
            heard = group.server.event("words")["words"]
            assert isinstance(heard, dict)
            words |= heard
        # The good ones come last: a busy hostile process takes seconds for its words, and good plugins come meanwhile.
        words |= {p["path"]: True for p in self._good.report() if p["notified"] and not p["removed_ns"]}
        dead = [group for group in groups if group.killed]
        shown = {path: state for path, state in self._shown().items() if not any(g.owns(path) for g in dead)}
        return soak_oracle.check_words(words, shown)

    def _shown(self) -> dict[str, str]:
        return {plugin["socket"]: plugin["state"] for plugin in json.loads(self._daemon.get("/plugins")[1])}

    def _await_rest(self) -> None:
        """Wait until the daemon knows only good plugins, and remember what it takes then."""

        def strangers() -> dict[str, str]:
            good = {str(self._good.options.path(index)) for index in self._standing}
            shown = self._shown().items()
            return {path: f"{path} is gone, and is shown as {state}" for path, state in shown if path not in good}

        self._await(strangers)
        self._wait(_LOOK)
        self.rests.append(Rest(self._elapsed, self._daemon.memory_kib(), self._daemon.descriptors()))

    def _await(self, wrong: Callable[[], Mapping[str, str]]) -> None:
        """Wait until of all paths that were wrong at first none is any more.

        Others may be wrong in between: good plugins come and go while the plugins and the daemon are asked. A look may
        take seconds where hostile processes are slow to answer, so a few looks are needed as well.
        """
        found, looks = wrong(), 1
        deadline = time.monotonic() + _PATIENCE
        while found:
            if time.monotonic() > deadline and looks >= _LOOKS:
                self._check(found.values())
            self._wait(_BEAT * 4)
            now = wrong()
            found, looks = {path: now[path] for path in found if path in now}, looks + 1

    def _check(self, found: Iterable[str]) -> None:
        if violations := list(found):
            more = f", and {len(violations) - 5} more" if len(violations) > 5 else ""
            raise Violation("; ".join(violations[:5]) + more)

    def _report(self, percent: float) -> None:
        log = self._daemon.log.stat().st_size
        if log > _LOG:
            os.truncate(self._daemon.log, 0)
        rest = self.rests[-1]
        daemon = f"{rest.rss_kib / 1024:.1f} MiB and {rest.descriptors} descriptors at rest, {percent:.0f} % CPU"
        good = f"{self._replaced} good ones replaced, log {log >> 10:,} KiB"
        self._say(f"{self._elapsed:6.0f} s  round {self.rounds}: {daemon}, {good}; {self.mixture}")


_FREEZE = {True: signal.SIGSTOP, False: signal.SIGCONT}


def _remove(group: _Group) -> None:
    """Remove all entries of a group whose process has ended."""
    in_own = group.directory.name.startswith("sub-")
    for entry in list(os.scandir(group.directory)):
        # The directory of another group, of moving-directories for one, may have the name of this kind in its own.
        if in_own or (group.kind in entry.name and not entry.name.startswith("sub-")):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
    if in_own:
        group.directory.rmdir()


def soak(conditions: Conditions, say: Callable[[str], None]) -> bool:
    """Run a soak; ``say`` gets a line for each round and one at the end. Return whether there was no violation."""
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        options = ServerOptions(directory=root, sockets=conditions.good, wait=True, core=conditions.peers_core)
        with (
            cheap_server(options) as good,
            plugind_run(root, scratch / "log", conditions.daemon_options, core=conditions.daemon_core) as daemon,
        ):
            good.create(0, conditions.good)
            good.await_notified(conditions.good, _PATIENCE)
            one = Soak(conditions, root, daemon, good, say)
            try:
                took = one.run()
            except (Violation, OSError) as error:
                say(f"seed {conditions.seed}: VIOLATION in round {one.rounds + 1}, {one.mixture}: {error}")
                say(daemon.log.read_text(errors="replace")[-4000:])
                daemon.kill()
                return False
            say(f"seed {conditions.seed}: clean, {one.rounds} rounds, stopped in {took:.2f} s; {_growth(one)}")
            return True


def _growth(one: Soak) -> str:
    later = one.rests[one.warm_rounds :]
    if len(later) < 2:
        return "too short to judge the memory"
    return f"the memory at rest grew by {soak_oracle.slope(later):.0f} KiB a minute in {len(later)} rounds"
