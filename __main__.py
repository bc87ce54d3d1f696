"""The command ``plugind``, and ``python -m plugind``."""

# The interpreter has loaded this module at its start; that of the public names imports others.
import _signal  # type: ignore[import-not-found]  # a part of the interpreter without a stub
import sys


def main() -> int:
    """Run the command line of this process, and return its exit code."""
    if next((word for word in sys.argv[1:] if not word.startswith("-")), None) == "run":
        # Requests to a daemon end a process that does not handle them. So they wait in the kernel from here on, before
        # anything else is imported, until the daemon receives them.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGHUP, _signal.SIGUSR1))
    from .actors.console.commands import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
