"""Draws the plots of docs/performance.md, of the figures in docs/figures; nothing is measured.

    python -m benchmarks.plots
    python -m benchmarks.plots --to /tmp --plot-format png

Each file there is what a benchmark has written with ``--json``. So a plot is renewed in two steps:

    python -m benchmarks.scaling --registered 1000 3000 10000 30000 --runs 3 --json docs/figures/scaling.json
    python -m benchmarks.plots
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from plugind.benchmarks.report.files import plot_directory
from plugind.benchmarks.report.page_plots import BENCHMARKS, plot_of
from plugind.benchmarks.report.plots import Plot
from plugind.benchmarks.report.table import Progress

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
FIGURES: Final = DOCS / "figures"


def stored(figures: Path = FIGURES) -> Iterator[tuple[str, Plot]]:
    """Yield the name of each plot and the plot, of the figures that are stored in a directory.

    Raises:
      OSError: if those of a plot are missing.
    """
    for name in BENCHMARKS:
        yield name, plot_of(name, json.loads((figures / f"{name}.json").read_text()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the plots."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figures", type=Path, default=FIGURES, metavar="DIR", help="the figures (docs/figures)")
    parser.add_argument("--to", type=plot_directory, default=str(DOCS), metavar="DIR", help="where to draw them (docs)")
    parser.add_argument("--plot-format", choices=("svg", "png"), default="svg", help="of the plots (default svg)")
    options = parser.parse_args(arguments)
    progress = Progress(len(BENCHMARKS))
    try:
        for name, plot in stored(options.figures):
            progress.step(name)
            path = options.to / f"{name}.{options.plot_format}"
            plot.save(path)
            print(path)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    finally:
        progress.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
