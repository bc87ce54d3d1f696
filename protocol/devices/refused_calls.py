"""The last refusal of Register for each resource, which is otherwise only in the log."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ..logs.lines import timestamp
from ..messages.status import RegisterRefused
from ..plugins.info import wrong_with_resource
from ..status.json import Json
from ..text import cut, encodable
from ..values import record

#: How many resources are kept, and how many characters of each text.
MAX_KEPT = 64
MAX_TEXT = 1024


@record
class RefusedCalls:
    """The last refused call for each resource, and its time; the oldest refusal first."""

    _calls: dict[str, tuple[float, RegisterRefused]] = attrs.field(factory=dict)

    def note(self, refused: RegisterRefused, now: float) -> None:
        """Keep a refusal in place of an earlier one for its resource. Calls without a valid resource are not kept."""
        if wrong_with_resource(refused.resource) is not None:
            return
        self._calls.pop(refused.resource, None)
        self._calls[refused.resource] = now, attrs.evolve(refused, reason=cut(refused.reason, MAX_TEXT))
        if len(self._calls) > MAX_KEPT:
            del self._calls[next(iter(self._calls))]

    def forget(self, resource: str) -> None:
        """Drop the refusal for a resource, because a plugin has registered for it."""
        self._calls.pop(resource, None)

    def words(self, resource: str | None, now: float) -> str | None:
        """Return the text about the last refusal for ``resource``; None if there is none."""
        if resource not in self._calls:
            return None
        time, call = self._calls[resource]
        return encodable(in_words(call.reason, call.pid, now - time))

    def to_json(self, now: float, unix: float) -> Iterator[dict[str, Json]]:
        """Yield the refusals. ``now`` is Trio's clock, and ``unix`` the wall clock at the same moment."""
        for resource, (time, call) in sorted(self._calls.items()):
            yield {
                "resource": encodable(resource),
                "endpoint": encodable(call.endpoint),
                "uid": call.uid,
                "pid": call.pid,
                "reason": encodable(call.reason),
                "age": round(now - time, 6),
                "since": timestamp(unix - (now - time)),
            }


def in_words(reason: object, pid: object, age: float) -> str:
    """Return the text about a call that was refused ``age`` seconds ago."""
    caller = f"pid {pid}" if pid else "a process of another pid namespace"
    return f"the last Register call for it, by {caller}, was refused {age:.0f} s ago: {reason}"
