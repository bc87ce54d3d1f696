"""Where a daemon's status socket is."""

from __future__ import annotations

import os
from typing import Final

#: The variable that names the status socket.
STATUS_VARIABLE: Final = "PLUGIND_STATUS"
#: The path of the service's.
SERVICE_PATH: Final = "/run/plugind/status.sock"


def default_status_path() -> str:
    """Return the default path of the status socket: that of PLUGIND_STATUS, or one that depends on the user."""
    named = os.environ.get(STATUS_VARIABLE)
    if named:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() == 0 or not runtime:
        return SERVICE_PATH
    return os.path.join(runtime, "plugind", "status.sock")
