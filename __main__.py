"""``python -m plugind`` is the command ``plugind``.

PYTEST_DONT_REWRITE
"""

import sys

from .actors.console.commands import main

if __name__ == "__main__":
    sys.exit(main())
