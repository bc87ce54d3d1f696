"""``plugind run`` with deadlines other than its own: ``python patient.py '{"get_info": 60}' OPTION...``.

Tests that expect the first attempt to succeed must not fail on a machine that is too busy for an answer to GetInfo
within a second. ``backoff`` is the first delay of the backoff: a test can look at what waits for so long. A name with
dots is a constant of one of plugind's modules: ``protocol.leases.book.GRACE``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from typing import Any

import attrs
import trio

from plugind.actors.console.run import add_arguments, read_configuration, run_daemon
from plugind.protocol.backoff import Backoff
from plugind.protocol.settings.config import Timeouts


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(sys.argv[2:])
    seconds: dict[str, Any] = json.loads(sys.argv[1])
    for constant in [name for name in seconds if "." in name]:
        module, _, name = constant.rpartition(".")
        setattr(importlib.import_module(f"plugind.{module}"), name, seconds.pop(constant))
    backoff = Backoff(initial=seconds.pop("backoff", Backoff().initial))
    settings = read_configuration(args, os.environ)
    config = attrs.evolve(settings.config, timeouts=Timeouts(**seconds), backoff=backoff)
    trio.run(run_daemon, attrs.evolve(settings, config=config))


if __name__ == "__main__":
    main()
