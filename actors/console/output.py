"""``-o json``: the option of commands whose output programs can read."""

from __future__ import annotations

import argparse


def add_output_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``-o`` and ``--json``, both for the attribute ``output``; ``what`` describes the JSON."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help=f"text for people (default); json: {what}"
    )
    form.add_argument("--json", action="store_const", const="json", dest="output", help="the same as -o json")
