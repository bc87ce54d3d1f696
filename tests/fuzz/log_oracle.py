"""The rules of the lines that the log gets for each plugin: every line is true, and none is missing or repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from plugind.protocol.logs.lines import Field, Level
from plugind.protocol.plugins.status import PluginStatus, StateName

#: Lines about a plugin that is not registered.
_FAILURES = ("plugin waiting", "plugin stale", "plugin parked")
#: The cause of the end of a socket whose plugin is deregistered later: the entry there is shown at once.
_REFUSED = "another entry is in its place"


@attrs.define(eq=False)
class LogOracle:
    """The logger of a node. It is given each event, and checks it against the earlier ones of the same path.

    A registration lasts from its line ``plugin registered`` to its line ``plugin deregistered``, and a socket until its
    line ``plugin gone``. What a crashed actor left in between may be reported by its successor or by nobody.
    """

    _violated: Callable[[str, str], None]
    #: The generation that is registered, by path.
    registered: dict[str, int] = attrs.field(factory=dict)
    #: The latest generation whose socket is gone, by path.
    _gone: dict[str, int] = attrs.field(factory=dict)
    #: Paths of actors that crashed while no registration of theirs was known.
    _crashed: set[str] = attrs.field(factory=set)

    def enabled(self, level: Level) -> bool:
        """Return whether the level is one that users see."""
        return level >= Level.INFO

    def event(self, level: Level, message: str, /, **fields: Field) -> None:
        """Check one event."""
        if self.enabled(level) and message.startswith("plugin "):
            path, generation = fields.get("socket"), fields.get("generation")
            assert isinstance(path, str)
            if isinstance(generation, int):
                self._check(message, path, generation, fields.get("cause"))

    def _check(self, message: str, path: str, generation: int, cause: Field) -> None:
        if generation <= self._gone.get(path, 0) and message != "plugin deregistered":
            self._violated("log", f"{message} of {path} #{generation}, which is gone")
        match message:
            case "plugin registered":
                if path in self.registered:
                    self._violated("log", f"{path} #{generation} is registered twice")
                self.registered[path] = generation
            case "plugin deregistered":
                if self.registered.pop(path, None) != generation and path not in self._crashed:
                    self._violated("log", f"{path} #{generation} is deregistered, and was not registered")
                self._crashed.discard(path)
            case "plugin gone":
                if self.registered.get(path) == generation and cause != _REFUSED:
                    self._violated("log", f"{path} #{generation} is gone, and still registered")
                self._gone[path] = generation
            case _ if message in _FAILURES and self.registered.get(path) == generation:
                self._violated("log", f"{message} of {path} #{generation}, which is registered")

    def crashed(self, path: str | None) -> None:
        """Take note that the registration of ``path`` has crashed, or with None every one with the reconciler."""
        if path is not None and path not in self.registered:
            self._crashed.add(path)
        elif path is None:
            self._crashed.update(self.registered)
            self.registered.clear()

    def restarted(self) -> None:
        """Take note that the daemon starts: it knows of no plugin, and begins its generations anew."""
        self.registered.clear()
        self._gone.clear()
        self._crashed.clear()

    def check_end(self, shown: Mapping[str, PluginStatus]) -> None:
        """Check that the lines say of a node at rest what it shows."""
        present = {path: status.generation for path, status in shown.items() if status.state is StateName.REGISTERED}
        if present != self.registered:
            self._violated("log", f"by the log {self.registered} are registered, shown are {present}")
