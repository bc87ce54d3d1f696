"""The durations of calls to drivers, as histograms with a bounded number of labels (fault 92)."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ..messages.consumers import CallEnded, CallFamily
from ..values import record
from .histograms import Histogram
from .metrics import ResourceLabels

#: The kubelet's bounds for each family. Those for DRA grow exponentially to 40.
BUCKETS = {
    CallFamily.CSI: (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0),
    CallFamily.DRA: tuple(round(0.1 * 400.0 ** (number / 14), 3) for number in range(15)),
}
#: grpc-go's names of the codes that are not simply these names in camel case.
_CODES = {"OK": "OK", "CANCELLED": "Canceled"}


def code_word(code: str) -> str:
    """Return grpc-go's name of a status code, which the kubelet's metrics use: ``DeadlineExceeded``."""
    return _CODES.get(code) or "".join(part.capitalize() for part in code.split("_"))


@record
class CallDurations:
    """The durations of calls, by family, driver, method and status code."""

    _labels: dict[CallFamily, ResourceLabels] = attrs.field(
        init=False, factory=lambda: {family: ResourceLabels() for family in CallFamily}
    )
    _durations: dict[tuple[CallFamily, str, str, str], Histogram] = attrs.field(init=False, factory=dict)

    def observe(self, call: CallEnded) -> None:
        """Count a call. The first drivers of a family have their own labels, and the others share one."""
        key = call.family, self._labels[call.family].label(call.name), call.method, call.code
        durations = self._durations.get(key)
        if durations is None:
            durations = self._durations[key] = Histogram(BUCKETS[call.family])
        durations.observe(call.seconds)

    def histograms(self, family: CallFamily) -> Iterator[tuple[tuple[str, str, str], Histogram]]:
        """Yield the histograms of a family with their labels: driver, method and code."""
        for (counted, name, method, code), durations in self._durations.items():
            if counted is family:
                yield (name, method, code_word(code)), durations
