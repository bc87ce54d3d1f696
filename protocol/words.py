"""The words for plugins, roots and directories, for programs that only read them.

The modules of the corresponding values export these words, too. Importing the values takes longer than a command needs
to ask a daemon, so the words are separate.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

CSI = "CSIPlugin"
DEVICE = "DevicePlugin"
DRA = "DRAPlugin"
#: The types that have a built-in handler (behaviour 41).
BUILT_IN_TYPES = (CSI, DEVICE, DRA)
#: The beginning of the reason for a wait after a series of short lives (fault 49).
CRASH_LOOP = "crash loop"


class StateName(enum.StrEnum):
    """The states of a socket's registration, as users see them."""

    WAITING = "waiting"
    DIALING = "dialing"
    ASKING_INFO = "asking-info"
    VALIDATING = "validating"
    REGISTERING = "registering"
    NOTIFYING = "notifying"
    REGISTERED = "registered"
    #: In observe mode: the plugin has given its info, and another consumer registers it.
    OBSERVED = "observed"
    PARKED = "parked"
    STALE = "stale"
    LEAVING = "leaving"
    GONE = "gone"


class Step(enum.StrEnum):
    """The steps of a try to register a plugin, as users see them."""

    DIAL = "dial"
    INFO = "info"
    #: Waiting for admission to the name.
    CLAIM = "claim"
    VALIDATE = "validate"
    REGISTER = "register"
    NOTIFY = "notify"


#: The state during each step.
STATE_IN: Mapping[Step, StateName] = {
    Step.DIAL: StateName.DIALING,
    Step.INFO: StateName.ASKING_INFO,
    Step.CLAIM: StateName.VALIDATING,
    Step.VALIDATE: StateName.VALIDATING,
    Step.REGISTER: StateName.REGISTERING,
    Step.NOTIFY: StateName.NOTIFYING,
}


def words_of_steps(steps: Iterable[tuple[str, float]]) -> str:
    """Return the time of each step, such as ``dial 0.3ms, info 1.2ms``. Most take less than a millisecond."""
    return ", ".join(
        [f"{step} {seconds * 1000:.1f}ms" if seconds < 1 else f"{step} {seconds:.1f}s" for step, seconds in steps]
    )


class Health(enum.StrEnum):
    """The health of a registered plugin, as its handler reports it."""

    #: Nothing was reported yet, or the last report is no longer valid.
    UNKNOWN = "unknown"
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    #: There is no connection to the endpoint.
    DISCONNECTED = "disconnected"


class Watching:
    """How a root is watched, in the words of the health report."""

    EVENTS = "events"
    #: Only by periodic scans, without inotify; health reports it as degraded (fault 17).
    POLLING = "polling"
    #: Others may write to the root: what is registered stays, and nothing new is taken (fault 3).
    INSECURE = "insecure"
    #: Device plugins may call Register in it.
    SERVING = "serving"
    #: Another process has replaced the socket for Register: nothing is served until the node is restarted.
    TAKEN = "taken"
    #: The root was never there, and the node works without it; it is tried again like an unavailable one.
    ABSENT = "absent"
    #: The root cannot be read, and is tried again with backoff (behaviour 2).
    UNAVAILABLE = "unavailable"


class DirectoryCondition(enum.StrEnum):
    """The problems of directories, worst first."""

    #: Others may write to it: nothing new is taken below it, and what is registered stays.
    INSECURE = "insecure"
    #: It has as many entries as it may have beside others; more are not taken (fault 48).
    FULL = "full"
    #: Its group may write to it, which is only reported.
    GROUP_WRITABLE = "group-writable"

    @property
    def degrades(self) -> bool:
        """Whether the node does less because of it."""
        return self is not DirectoryCondition.GROUP_WRITABLE
