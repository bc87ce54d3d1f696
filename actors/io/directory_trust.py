"""Who may write to the directories that are looked at; :mod:`plugind.protocol.directories` judges that.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import stat

from ...protocol.directories import Access
from ...protocol.errors import ConfigError


class InsecureRootError(ConfigError):
    """Others may write to the root (fault 3). The text says what to do."""


def access_of(status: os.stat_result) -> Access:
    """Return who may write to the directory with this ``status``."""
    return Access(stat.S_IMODE(status.st_mode), status.st_uid, status.st_uid == os.geteuid())
