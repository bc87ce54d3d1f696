"""The files that a benchmark writes on request: its figures as JSON, and a plot of them."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from plugind.benchmarks.report.plots import Plot
from plugind.benchmarks.report.table import Row


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``, which every benchmark has."""
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures as a list of rows")


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--plot``."""
    add_json_argument(parser)
    parser.add_argument(
        "--plot", type=_plot_path, metavar="OUT.svg", help="plot the figures; the suffix names the format"
    )


def plot_directory(text: str) -> Path:
    """Return the directory that an argument names, if plots can be drawn.

    Raises:
      argparse.ArgumentTypeError: if they cannot, or there is no such directory.
    """
    if not (path := Path(text)).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no directory")
    _check_library()
    return path


def _plot_path(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".svg", ".png"):
        raise argparse.ArgumentTypeError(f"{text!r} ends neither in .svg nor in .png")
    _check_library()
    return path


def _check_library() -> None:
    # This is checked before the measurement, which may take minutes and would be lost if the library were missing.
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("plots need matplotlib: run pip install -e '.[dev]'")


def write_json(arguments: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Write the rows as one JSON list, if ``--json`` was given."""
    if arguments.json:
        arguments.json.write_text(json.dumps(list(rows), indent=2) + "\n")


def write_files(arguments: argparse.Namespace, rows: Sequence[Row], plot: Plot) -> None:
    """Write the requested files."""
    write_json(arguments, rows)
    if arguments.plot:
        plot.save(arguments.plot)
