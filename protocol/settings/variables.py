"""The names of the environment variables that are settings.

The table of settings has them, too, but it takes longer to load than anything else that a daemon needs at its start,
and a daemon may have variables that begin like these and are no settings.
"""

from __future__ import annotations

from typing import Final

#: The prefix of all variables.
PREFIX: Final = "PLUGIND_"
_WITHOUT_PREFIX: Final = """
    BACKOFF_CAP BACKOFF_FACTOR BACKOFF_INITIAL BACKOFF_JITTER BLOCKED_AFTER CSI_REFRESH CSI_TOPOLOGY_COLLISIONS
    DEPRECATED_ROOTS DEREGISTER_AT_STOP DEREGISTER_NOT_SERVING DEVICE_PLUGINS_DIRECTORY DEVICE_PLUGINS_INSECURE
    DEVICE_PLUGINS_TAKE_OVER_KUBELET DRA_GONE_AFTER DRA_HEALTH ENDPOINT_DIRECTORIES EXPECTED EXPECTED_DEVICES
    FOLLOW_SYMLINKS_INSIDE_ROOT HANDLER_GRACE HANDLER_UIDS
    HEALTH_CHECKS_CONFIRM_AFTER HEALTH_CHECKS_DEADLINE HEALTH_CHECKS_FAILURES
    HEALTH_CHECKS_JITTER HEALTH_CHECKS_OFF HEALTH_CHECKS_PERIOD HEALTH_CHECKS_PERIODS HUNG_AFTER
    INFO_LIMITS_MAX_ENDPOINT INFO_LIMITS_MAX_STRING INFO_LIMITS_MAX_VERSIONS INSECURE_ROOTS INTENSITY_PERIOD
    INTENSITY_RESTARTS LEASES_CDI_DIRECTORY LEASES_HISTORY_DAYS LEASES_HISTORY_MAX_BYTES
    LEASES_LIMITS_ALL_LEASES LEASES_LIMITS_DEVICES
    LEASES_LIMITS_LABEL_BYTES LEASES_LIMITS_LEASES LEASES_OPERATORS LEASES_PERMITTED LEASES_POOLS
    LEASES_USERS_GROUP LEASES_USERS_UIDS LOG_FORMAT LOG_LEVEL LOG_LIMITS_EACH LOG_LIMITS_ENABLED LOG_LIMITS_SAME
    LOG_LIMITS_TOTAL LOG_LIMITS_WINDOW MAX_INSTANCES METRICS_ADDRESS METRICS_HOSTS METRICS_PATH_LABELS OBSERVE
    OBSERVE_AGAIN OPTIONAL_ROOTS READY_WHEN RENOTIFY RESCAN RESOURCES ROOT SEED STABLE_AFTER STATE STATIC_DEVICES
    STATUS STATUS_GROUP STRICT TIMEOUTS_DIAL TIMEOUTS_GET_INFO TIMEOUTS_HANDLER TIMEOUTS_HANDLERS TIMEOUTS_NOTIFY
    TIMEOUTS_REFUSED_GRACE
    TIMEOUTS_STOP_GRACE TRUST_UIDS WIRE_LIMITS_BUDGET_PERIOD WIRE_LIMITS_CALL_BYTES WIRE_LIMITS_CALL_FRAMES
    WIRE_LIMITS_CALL_HEADER_BYTES WIRE_LIMITS_CONNECTION_WINDOW WIRE_LIMITS_CONTINUATIONS WIRE_LIMITS_EMPTY_DATA
    WIRE_LIMITS_HEADER_LIST_BYTES WIRE_LIMITS_INFORMATIONAL WIRE_LIMITS_LATE_FRAMES WIRE_LIMITS_MESSAGE_BYTES
    WIRE_LIMITS_PINGS WIRE_LIMITS_PRIORITIES WIRE_LIMITS_RESETS WIRE_LIMITS_SETTINGS WIRE_LIMITS_SETTINGS_ENTRIES
    WIRE_LIMITS_SMALL_DATA WIRE_LIMITS_STREAM_WINDOW WIRE_LIMITS_TOTAL_BYTES WIRE_LIMITS_UNKNOWN_FRAMES
    WIRE_LIMITS_UNPARSED_BYTES WIRE_LIMITS_WINDOW_UPDATES
"""
NAMES: Final = frozenset(PREFIX + name for name in _WITHOUT_PREFIX.split())
#: The variable with the configuration file, which is no setting.
CONFIG_VARIABLE: Final = PREFIX + "CONFIG"
#: Variables of plugind that are no settings: those of its unit, its tests and lessees.
_OTHERS: Final = frozenset(PREFIX + name for name in ("CONFIG", "DEVICES", "LEASE", "MARKERS", "NODES", "OPTIONS"))
#: The variables that Kubernetes sets for each service, and so for one called plugind or plugind-metrics.
_OF_KUBERNETES: Final = r"(?s)(?:.*_)?(?:PORT(_.*)?|SERVICE_(HOST|PORT(_.*)?))"
#: How similar a misspelt name must be to a setting's. One letter too many or too few always is.
_ALIKE: Final = 0.85
#: Characters of a name that are compared.
_COMPARED: Final = 64


def meant_by(name: str) -> str | None:
    """Return the variable that was probably meant by the unknown ``name``; None if none is similar.

    A program can have its own variables with this prefix: ``PLUGIND_OPTIONS`` is used by the service's unit.
    """
    if name in _OTHERS:
        return None
    # Imported late: few daemons have such a variable.
    import difflib
    import re

    word = name.removeprefix(PREFIX)[:_COMPARED].upper()
    if re.fullmatch(_OF_KUBERNETES, word):
        return None
    candidates = sorted(known.removeprefix(PREFIX) for known in {*NAMES, CONFIG_VARIABLE})
    close = difflib.get_close_matches(word, candidates, 1, _ALIKE)
    return PREFIX + close[0] if close else None
