"""What a script does to the directories of a root: others may write to them, and they change hands."""

from __future__ import annotations

import random

import attrs

from plugind.actors.simulation.node import SimulatedNode
from plugind.tests.fuzz.backoff_oracle import BackoffOracle
from plugind.tests.fuzz.directory_oracle import DirectoryOracle
from plugind.tests.fuzz.script import DIRECTORIES, TRUSTED
from plugind.tests.fuzz.sentinels import Sentinels

#: Seconds until the daemon has found out who may write to a directory: a rescan.
_NOTICED = 32.0


@attrs.frozen(eq=False)
class DirectoryActs:
    """The directories of one node."""

    _node: SimulatedNode
    _sentinels: Sentinels
    _backoff: BackoffOracle
    _modes: DirectoryOracle

    def change_mode(self, chance: random.Random) -> None:
        """Let others write to a directory, or no more; or let its group write to it, which changes nothing."""
        directory, paths = self._node.directory, self.paths()
        if not paths:
            return
        path = chance.choice(paths)
        if self._modes.is_insecure(path):
            self.mend(path)
        elif chance.random() < 0.4:
            directory.chown(path, 1000)
        else:
            directory.chmod(path, chance.choice((0o777, 0o1777, 0o775)))
        self._changed(path)

    def give(self, chance: random.Random) -> str | None:
        """Give a directory below the root to a trusted user, or back to root; return which one that was."""
        directory = self._node.directory
        paths = [path for path in map(self._node.path, DIRECTORIES) if directory.exists(path)]
        if not paths:
            return None
        path = chance.choice(paths)
        directory.chown(path, chance.choice((0, *TRUSTED)))
        self._backoff.touched()
        self._changed(path)
        return path

    def _changed(self, path: str) -> None:
        self._modes.changed(path)
        # What changes in such a directory is seen only later, as if the events were lost.
        self._node.directory.reuse_inodes = not (self._node.directory.dropping_events or self.frozen())
        self._sentinels.grant_grace(_NOTICED)

    def mend_root(self) -> None:
        """Let nobody else write to the root, if it is there."""
        if self._node.directory.exists(self._node.root):
            self.mend(self._node.root)

    def mend(self, path: str) -> None:
        """Let nobody but root write to a directory."""
        self._node.directory.chmod(path, 0o755)
        self._node.directory.chown(path, 0)
        self._modes.changed(path)
        self._backoff.touched()

    def paths(self) -> list[str]:
        """Return the directories that are there, the root first."""
        paths = (self._node.path(name).rstrip("/") for name in ("", *DIRECTORIES))
        return [path for path in paths if self._node.directory.exists(path)]

    def frozen(self) -> bool:
        """Whether others may write to any directory, so that the daemon takes nothing new from it."""
        return any(self._modes.is_insecure(path) for path in self.paths())
