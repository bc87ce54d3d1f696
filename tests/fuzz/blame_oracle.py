"""The rule of a refusal's words: a plugin is sent that the handler broke if, and only if, it did (fault 81)."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from plugind.actors.handlers.calls import BROKE
from plugind.protocol.errors import PluginError

#: The words of the reference before an error of a handler.
_BEFORE = " failed with err: "


@attrs.define
class BlameOracle:
    """Compares what a plugin is sent with how the last call of a handler about it failed."""

    #: Is given the name of the rule and what violated it.
    _violated: Callable[[str, str], None]
    #: The exception of the last failed call about the plugin at each path.
    _raised: dict[str, BaseException] = attrs.Factory(dict)

    def raised(self, path: str, error: BaseException) -> None:
        """A call about the plugin at ``path`` raised ``error``."""
        self._raised[path] = error

    def refused(self, path: str, sent: str | None) -> None:
        """The plugin at ``path`` was sent the error ``sent``."""
        error, words = self._raised.get(path), (sent or "").partition(_BEFORE)[2]
        broke = error is not None and not isinstance(error, PluginError)
        if words.startswith(BROKE) and not broke:
            self._violated("blame", f"{path} was sent {words!r}, and its handler did not break")
        elif broke and words == f"{type(error).__name__}: {error}":
            self._violated("blame", f"{path} was sent {words!r} as if its handler had refused it")
