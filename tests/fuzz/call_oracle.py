"""What becomes of calls of Register, and what must be registered because of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import attrs
import trio

from plugind.actors.simulation.device_directory import MemoryDeviceDirectory, RegisterAttempt
from plugind.protocol.identity import Identity

#: Seconds until the server has noticed that its socket was replaced: a look, and the messages that follow.
NOTICED: Final = 2.0
#: What the handler of a script says to a plugin that it refuses.
REFUSAL: Final = "no"
#: Codes of calls that are refused before they change anything at their path, unless the handler has refused them.
_HARMLESS: Final = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED")


@attrs.define(eq=False)
class CallOracle:
    """Each call is answered once; what was answered yes is registered while its socket is there, and nobody yields."""

    _violated: Callable[[str, str], None]
    #: The calls at each endpoint, with the socket that was there.
    _calls: dict[str, list[tuple[RegisterAttempt, Identity | None]]] = attrs.field(init=False, factory=dict)
    #: When another process took the socket of the daemon that runs.
    taken: float | None = attrs.field(init=False, default=None)

    def made(self, attempt: RegisterAttempt, identity: Identity | None) -> None:
        """A plugin has called whose socket was ``identity`` then."""
        self._calls.setdefault(attempt.call.endpoint, []).append((attempt, identity))

    def took(self) -> None:
        """Another process has the socket."""
        self.taken = trio.current_time() if self.taken is None else self.taken

    def check_answers(self, attempts: Iterable[RegisterAttempt]) -> None:
        """Check that each call was answered once, and none yes while another process had the socket."""
        for attempt in attempts:
            if len(attempt.answers) != 1:
                self._violated("calls", f"the call of {attempt.call} was answered {attempt.answers}")
            self._check_yes(attempt)

    def _check_yes(self, attempt: RegisterAttempt) -> None:
        if self.taken is None or attempt.answered_at is None or attempt.code != "OK":
            return
        if attempt.answered_at > self.taken + NOTICED:
            self._violated("calls", f"{attempt.call} was answered yes while another process had the socket")

    def expected(self, directory: MemoryDeviceDirectory) -> set[str]:
        """Return the endpoints whose last call that counts was answered yes, and whose socket is still the same."""
        found = set()
        for endpoint, calls in self._calls.items():
            counted = [(attempt, identity) for attempt, identity in calls if not _is_harmless(attempt)]
            if not counted:
                continue
            attempt, identity = counted[-1]
            there = directory.identify(endpoint)
            if attempt.code == "OK" and identity is not None and there is not None and identity.is_same(there):
                found.add(endpoint)
        return found


def _is_harmless(attempt: RegisterAttempt) -> bool:
    """Whether the call has changed nothing at its path. When the handler sees it, the plugin before it has left."""
    return attempt.code in _HARMLESS and (attempt.code, REFUSAL) not in attempt.answers
