"""The plots of docs/performance.md are those of the figures in docs/figures."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import attrs
import pytest

from plugind.benchmarks import compare, plots
from plugind.benchmarks.report.page_plots import BENCHMARKS
from plugind.benchmarks.report.storm_tables import rows
from plugind.tests.benchmarks.comparisons import BASE, THIS, comparison, run
from plugind.tests.benchmarks.storms import three_storms

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


def test_the_plots_of_a_comparison_are_drawn_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = {"client": "plugind", "concurrency": 64, "sockets": 10, "server": "spins"}
    runs = [{"conversations_per_s": 100.0, "cpu_ms": 0.25}]
    found = comparison(
        attrs.evolve(run(0, THIS, {}), rows=rows(three_storms())),
        attrs.evolve(run(0, THIS, {}, "wire"), rows=[client | {"runs": runs}]),
        attrs.evolve(run(0, BASE, {}), rows=rows(three_storms())),
        cases=("storm 1000", "wire"),
    )
    (tmp_path / "figures").write_text(json.dumps(found.to_json()))
    assert compare.main(["--from", str(tmp_path / "figures"), "--plots", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [f"wrote {tmp_path}/storms.svg", f"wrote {tmp_path}/wire.svg"]
    words = {text.strip() for text in ElementTree.parse(tmp_path / "wire.svg").getroot().itertext()}
    assert {"64 at once", "0.250", "plugind"} <= words
