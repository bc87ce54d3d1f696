"""Plots of measurements, drawn by matplotlib."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import attrs
import pytest

from plugind.benchmarks.report.files import add_file_arguments, write_files
from plugind.benchmarks.report.plots import Bars, Lines, Plot, Series
from plugind.benchmarks.report.storm_tables import plot
from plugind.benchmarks.report.table import Spread
from plugind.tests.benchmarks.storms import three_storms

pytestmark = pytest.mark.extended

if importlib.util.find_spec("matplotlib") is None:
    pytest.skip("matplotlib is not installed (PyPI package matplotlib, in the extra dev)", allow_module_level=True)

RED = Series("red", "#ff0000")
BARS = Bars(
    title="Seconds",
    groups=["few", "many"],
    values={("few", "red"): Spread(1.5, 1.0, 2.0)},
    marks={"many": 3.0},
    mark="the aim",
)
LINES = Lines(
    title="Memory",
    x_title="sockets",
    values={"red": [(1000, Spread(9.0, 8.0, 9.5)), (1, Spread(4.0, 4.0, 4.0))]},
    log_x=True,
)


def texts(path: Path) -> set[str]:
    return {text.strip() for text in ElementTree.parse(path).getroot().itertext() if text.strip()}


def test_a_plot_shows_titles_groups_figures_and_names(tmp_path: Path) -> None:
    Plot("Storms", "on a machine", [RED], [BARS, LINES]).save(tmp_path / "plot.svg")
    titles = {"Storms", "on a machine", "Seconds (dashed: the aim)", "Memory"}
    assert titles | {"few", "many", "1.50", "9.00", "red", "1,000"} <= texts(tmp_path / "plot.svg")


def test_an_axis_from_zero_has_room_above_a_flat_line(tmp_path: Path) -> None:
    flat = Lines(title="Flat", x_title="sockets", values={"red": [(1, Spread.of([8.0])), (2, Spread.of([8.1]))]})
    for name, panel in (("range.svg", flat), ("zero.svg", attrs.evolve(flat, from_zero=True))):
        Plot("Storms", "on a machine", [RED], [panel]).save(tmp_path / name)
    assert {"0", "2", "4", "6", "8", "10"} <= texts(tmp_path / "zero.svg")
    assert "0" not in texts(tmp_path / "range.svg")


def test_the_same_figures_give_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        Plot("Storms", "on a machine", [RED], [BARS]).save(tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_storms_are_drawn_only_on_request(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_file_arguments(parser)
    write_files(parser.parse_args([]), [], plot(three_storms()))
    assert list(tmp_path.iterdir()) == []
    write_files(parser.parse_args(["--plot", str(tmp_path / "storm.svg")]), [], plot(three_storms()))
    assert {"plugind", "kubelet", "sockets at once, logarithmic"} <= texts(tmp_path / "storm.svg")


def test_a_plot_of_an_unknown_format_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_file_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--plot", "storm.gif"])
    assert "ends neither in .svg nor in .png" in capsys.readouterr().err
