"""The words that a daemon says of plugins, roots and directories, for programs that only read them.

The modules of the values that have them give them, too; here they are without these values, whose classes take longer
to make than a command takes to ask a daemon.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

CSI = "CSIPlugin"
DEVICE = "DevicePlugin"
DRA = "DRAPlugin"
#: The types that have a built-in handler (behaviour 41).
BUILT_IN_TYPES = (CSI, DEVICE, DRA)
#: Begins the reason of a plugin whose path had a series of short lives (fault 49).
CRASH_LOOP = "crash loop"


class StateName(enum.StrEnum):
    """The states of a socket's registration, by the names that users see."""

    WAITING = "waiting"
    DIALING = "dialing"
    ASKING_INFO = "asking-info"
    VALIDATING = "validating"
    REGISTERING = "registering"
    NOTIFYING = "notifying"
    REGISTERED = "registered"
    #: In observe mode: it has said what it is, and another consumer registers it.
    OBSERVED = "observed"
    PARKED = "parked"
    STALE = "stale"
    LEAVING = "leaving"
    GONE = "gone"


class Step(enum.StrEnum):
    """Where a try to register a plugin is, by the names that users see."""

    DIAL = "dial"
    INFO = "info"
    #: It waits until it is admitted to its name.
    CLAIM = "claim"
    VALIDATE = "validate"
    REGISTER = "register"
    NOTIFY = "notify"


#: The state of a try that is in this step.
STATE_IN: Mapping[Step, StateName] = {
    Step.DIAL: StateName.DIALING,
    Step.INFO: StateName.ASKING_INFO,
    Step.CLAIM: StateName.VALIDATING,
    Step.VALIDATE: StateName.VALIDATING,
    Step.REGISTER: StateName.REGISTERING,
    Step.NOTIFY: StateName.NOTIFYING,
}


def words_of_steps(steps: Iterable[tuple[str, float]]) -> str:
    """Return how long each step took: ``dial 0.3ms, info 1.2ms``. Most take less than a millisecond."""
    return ", ".join(
        [f"{step} {seconds * 1000:.1f}ms" if seconds < 1 else f"{step} {seconds:.1f}s" for step, seconds in steps]
    )


class Health(enum.StrEnum):
    """How a registered plugin is, as its handler reports."""

    #: Nothing was reported yet, or what was reported holds no more.
    UNKNOWN = "unknown"
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    #: There is no connection to its endpoint.
    DISCONNECTED = "disconnected"


class Watching:
    """How a root is watched, in the words of the health report."""

    EVENTS = "events"
    #: Without inotify, by periodic scans alone; health reports it as degraded (fault 17).
    POLLING = "polling"
    #: Others may write to the root: what is registered stays, and nothing new is taken (fault 3).
    INSECURE = "insecure"
    #: Device plugins may call Register in it.
    SERVING = "serving"
    #: Another process has replaced the socket for that: nothing is served until the node is started again.
    TAKEN = "taken"
    #: It was never there, and the node works without it; it is tried again as one that is unavailable.
    ABSENT = "absent"
    #: Not at all: the root cannot be read, and is tried again with backoff (behaviour 2).
    UNAVAILABLE = "unavailable"


class DirectoryCondition(enum.StrEnum):
    """What is wrong with a directory, the worst first."""

    #: Others may write to it: nothing new is taken below it, and what is registered stays.
    INSECURE = "insecure"
    #: It has as many entries as it may have beside the others; more are not taken (fault 48).
    FULL = "full"
    #: Its group may write to it, which is only said.
    GROUP_WRITABLE = "group-writable"

    @property
    def degrades(self) -> bool:
        """Whether the node does less because of it."""
        return self is not DirectoryCondition.GROUP_WRITABLE
