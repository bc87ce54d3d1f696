"""``plugind run`` with deadlines other than its own: ``python patient.py '{"get_info": 60}' OPTION...``.

Tests that expect the first attempt to succeed must not fail on a machine that is too busy for an answer to GetInfo
within a second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import attrs
import trio

from plugind.actors.console.run import add_arguments, config_from, run_daemon
from plugind.protocol.config import Timeouts


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(sys.argv[2:])
    timeouts = Timeouts(**json.loads(sys.argv[1]))
    trio.run(run_daemon, args, attrs.evolve(config_from(args, os.environ), timeouts=timeouts))


if __name__ == "__main__":
    main()
