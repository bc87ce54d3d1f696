"""Run in namespaces of its own by a test: starts a process that leaves it, as Slurm's steps do, and one that stays."""

from __future__ import annotations

import subprocess
import sys
import time


def main(name: str, seconds: str) -> None:
    """Start both, with ``name`` in their arguments; say that they run, and end after so many seconds."""
    script = f": {name}; sleep 600; true"
    subprocess.run(["sh", "-c", f"setsid sh -c '{script}' </dev/null &"], timeout=60, check=True)
    left = subprocess.Popen(["sh", "-c", script])
    sys.stdout.write("both run\n")
    sys.stdout.flush()
    time.sleep(float(seconds))
    raise SystemExit(7 if left.poll() is None else 8)


if __name__ == "__main__":
    main(*sys.argv[1:])
