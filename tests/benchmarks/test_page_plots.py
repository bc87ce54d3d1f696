"""The plots of docs/performance.md are those of the figures in docs/figures."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plugind.benchmarks import plots
from plugind.benchmarks.report.page_plots import BENCHMARKS

pytestmark = pytest.mark.extended

if importlib.util.find_spec("matplotlib") is None:
    pytest.skip("matplotlib is not installed (PyPI package matplotlib, in the extra dev)", allow_module_level=True)

PAGE = (plots.DOCS / "performance.md").read_text()
NAMES = sorted(BENCHMARKS)


def texts(path: Path) -> list[str]:
    """Return all texts of a plot: the figures, titles and marks. Where they are depends on the fonts of a machine."""
    found = ("".join(text.split()) for text in ElementTree.parse(path).getroot().itertext())
    return [text for text in found if text]


def test_each_plot_of_the_page_has_stored_figures_and_each_figure_a_plot() -> None:
    assert sorted(re.findall(r"\]\((\w+)\.svg\)", PAGE)) == NAMES
    assert sorted(path.name for path in plots.FIGURES.iterdir()) == [f"{name}.json" for name in NAMES]
    assert sum(path.stat().st_size for path in plots.FIGURES.iterdir()) < 100_000


def test_one_command_draws_the_plots_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plots.main(["--to", str(tmp_path)]) == 0
    assert sorted(capsys.readouterr().out.split()) == [str(tmp_path / f"{name}.svg") for name in NAMES]
    for name in NAMES:
        drawn, stored = texts(tmp_path / f"{name}.svg"), texts(plots.DOCS / f"{name}.svg")
        assert drawn == stored, f"draw {name}.svg anew: python -m benchmarks.plots"
