"""Plots of measurements: panels of grouped bars or of lines, drawn by matplotlib and written as SVG or PNG.

matplotlib is part of the extra ``dev``. It is imported when a plot is drawn, so that a benchmark runs without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from plugind.benchmarks.report.table import Spread, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours that remain distinct for colour-blind readers.
PALETTE = ("#0072b2", "#e69f00", "#d55e00", "#cc79a7", "#009e73", "#56b4e9", "#8a94a0")
#: Inches.
_WIDTH, _PANEL_HEIGHT, _MARGINS = 10.0, 3.2, 0.9
_BAR_GROUP = 0.8
_INK, _GRID = "#1f2933", "#e4e7eb"


@attrs.frozen
class Series:
    """A series of the plot, with its name and colour."""

    name: str
    colour: str


@attrs.frozen(kw_only=True)
class Bars:
    """A panel of grouped bars. ``marks`` are dashed levels across groups, which ``mark`` explains in the title."""

    title: str
    groups: Sequence[str]
    #: The values by group and series.
    values: dict[tuple[str, str], Spread]
    log: bool = False
    marks: dict[str, float] = attrs.field(factory=dict)
    mark: str = ""


@attrs.frozen(kw_only=True)
class Lines:
    """A panel of lines over numbers, by series. The x axis is logarithmic if ``log_x`` is set.

    With ``from_zero`` the other axis begins at zero, so that a flat line looks flat.
    """

    title: str
    x_title: str
    values: Mapping[str, Sequence[tuple[float, Spread]]]
    log: bool = False
    log_x: bool = False
    from_zero: bool = False


@attrs.frozen
class Plot:
    """A figure of panels one below the other, with one colour for each series."""

    title: str
    subtitle: str
    series: Sequence[Series]
    panels: Sequence[Bars | Lines]

    def save(self, path: Path) -> None:
        """Draw the plot and write it to ``path``, whose suffix names the format."""
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        # Text stays text, and no date or random identifier is written, so that the same figures give the same file.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "plugind", "font.size": 9}):
            height = _MARGINS + _PANEL_HEIGHT * len(self.panels)
            picture = Figure(figsize=(_WIDTH, height), layout="constrained")
            picture.suptitle(f"{self.title}\n", x=0.01, ha="left", fontsize=13, fontweight="bold")
            picture.text(0.01, 1 - 0.42 / height, self.subtitle, color="#616e7c")
            for axes, panel in zip(picture.subplots(len(self.panels), squeeze=False)[:, 0], self.panels, strict=True):
                _panel(axes, panel, self.series)
            picture.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Axes, panel: Bars | Lines, series: Sequence[Series]) -> None:
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_GRID)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.log:
        axes.set_yscale("log")
    match panel:
        case Bars():
            axes.set_title(panel.title + (f" (dashed: {panel.mark})" if panel.marks else ""), loc="left", fontsize=10)
            _bars(axes, panel, series)
        case Lines():
            axes.set_title(panel.title, loc="left", fontsize=10)
            _lines(axes, panel, series)
    axes.margins(y=0.18)
    if isinstance(panel, Lines) and panel.from_zero:
        # A margin of 18 % is one of the range, which is next to nothing where the line is flat.
        axes.set_ylim(0, 1.25 * max(spread.high for line in panel.values.values() for _, spread in line))
    axes.legend(loc="best", frameon=False)


def _bars(axes: Axes, panel: Bars, series: Sequence[Series]) -> None:
    shown = [one for one in series if any((group, one.name) in panel.values for group in panel.groups)]
    width = _BAR_GROUP / max(len(shown), 1)
    for index, one in enumerate(shown):
        points = [
            (place - _BAR_GROUP / 2 + (index + 0.5) * width, panel.values[group, one.name])
            for place, group in enumerate(panel.groups)
            if (group, one.name) in panel.values
        ]
        places, spreads = [place for place, _ in points], [spread for _, spread in points]
        bars = axes.bar(
            places,
            [spread.median for spread in spreads],
            width * 0.92,
            color=one.colour,
            label=one.name,
            yerr=_errors(spreads),
            error_kw={"ecolor": _INK, "elinewidth": 1},
        )
        axes.bar_label(bars, [figure(spread.median) for spread in spreads], padding=2, fontsize=8)
    axes.set_xticks(range(len(panel.groups)), panel.groups)
    for group, level in panel.marks.items():
        middle = panel.groups.index(group)
        axes.hlines(level, middle - _BAR_GROUP / 2, middle + _BAR_GROUP / 2, color=_INK, linestyle="dashed")


def _lines(axes: Axes, panel: Lines, series: Sequence[Series]) -> None:
    for one in series:
        line = sorted(panel.values.get(one.name, ()), key=lambda point: point[0])
        if not line:
            continue
        places, spreads = [x for x, _ in line], [spread for _, spread in line]
        medians = [spread.median for spread in spreads]
        axes.errorbar(
            places,
            medians,
            yerr=_errors(spreads),
            color=one.colour,
            ecolor=_INK,
            elinewidth=1,
            marker="o",
            label=one.name,
        )
        for x, y in zip(places, medians, strict=True):
            axes.annotate(figure(y), (x, y), (4, 5), textcoords="offset points", color=one.colour, fontsize=8)
    if panel.log_x:
        axes.set_xscale("log")
    across = sorted({x for line in panel.values.values() for x, _ in line})
    axes.set_xticks(across, [f"{x:,g}" for x in across], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel(panel.x_title)


def _errors(spreads: Sequence[Spread]) -> list[list[float]]:
    """Return the distances of the lowest and the highest run from the median."""
    return [[spread.median - spread.low for spread in spreads], [spread.high - spread.median for spread in spreads]]
