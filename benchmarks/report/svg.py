"""Plots as plain SVG, written by hand: panels of grouped bars or of lines, on linear or logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import attrs

from plugind.benchmarks.report.table import Spread, figure

WIDTH = 960
_LEFT, _RIGHT, _PANEL, _GAP, _TOP = 64, 24, 230, 66, 96
_INK, _FAINT, _GRID = "#1f2933", "#616e7c", "#e4e7eb"
PALETTE = ("#0072b2", "#e69f00", "#d55e00", "#cc79a7", "#009e73", "#56b4e9", "#8a94a0")
"""Colours that stay apart for colour-blind eyes."""


@attrs.frozen
class Series:
    """What one colour stands for."""

    name: str
    colour: str


@attrs.frozen(kw_only=True)
class Bars:
    """A panel of bars, grouped; `marks` draws a dashed level across a group, told by `mark` in the title."""

    title: str
    groups: Sequence[str]
    values: dict[tuple[str, str], Spread]
    log: bool = False
    marks: dict[str, float] = attrs.field(factory=dict)
    mark: str = ""


@attrs.frozen(kw_only=True)
class Lines:
    """A panel of lines over numbers; the x axis is logarithmic when `log_x`."""

    title: str
    x_title: str
    values: Mapping[str, Sequence[tuple[float, Spread]]]
    log: bool = False
    log_x: bool = False


@attrs.frozen
class _Axis:
    """Values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high, here = self.low, self.high, value
        if self.log:
            low, high, here = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return self.start + (here - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if not self.log:
            step = _step(self.high / 5)
            return [index * step for index in range(int(self.high / step) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if len(decades) <= 4 else (1,)
        every = (10.0**decade * step for decade in decades for step in steps)
        return [tick for tick in every if self.low <= tick * 1.0001 and tick <= self.high * 1.0001]


def _step(least: float) -> float:
    """The next larger of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(power * step for step in (1, 2, 5, 10) if power * step >= least * 0.999)


def chart(title: str, subtitle: str, series: Sequence[Series], panels: Sequence[Bars | Lines]) -> str:
    """The whole picture, panels one below the other."""
    height = _TOP + len(panels) * (_PANEL + _GAP) + 8
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Inter, Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(24, 32, title, size=18, weight=600),
        _text(24, 52, subtitle, colour=_FAINT),
        *_legend(series),
    ]
    for index, panel in enumerate(panels):
        top = _TOP + index * (_PANEL + _GAP) + 28
        match panel:
            case Bars():
                body += _bars(panel, series, top)
            case Lines():
                body += _lines(panel, series, top)
    return "\n".join([*body, "</svg>", ""])


def _legend(series: Sequence[Series]) -> Iterator[str]:
    x = 24.0
    for one in series:
        yield f'<rect x="{x:.0f}" y="68" width="12" height="12" rx="2" fill="{one.colour}"/>'
        yield _text(x + 18, 78, one.name)
        x += 42 + 6.8 * len(one.name)


def _bars(panel: Bars, series: Sequence[Series], top: float) -> Iterator[str]:
    shown = [one for one in series if any((group, one.name) in panel.values for group in panel.groups)]
    levels = [level for spread in panel.values.values() for level in (spread.low, spread.high)]
    axis = _vertical([*levels, *panel.marks.values()], top, log=panel.log)
    note = f"   (dashed: {panel.mark})" if panel.marks else ""
    yield from _frame(axis, panel.title + note, top)
    room = (WIDTH - _LEFT - _RIGHT) / len(panel.groups)
    wide = min(56.0, room * 0.86 / max(len(shown), 1))
    for place, group in enumerate(panel.groups):
        middle = _LEFT + room * (place + 0.5)
        first = middle - wide * len(shown) / 2
        yield _text(middle, top + _PANEL + 18, group, anchor="middle", colour=_FAINT)
        for index, one in enumerate(shown):
            if (spread := panel.values.get((group, one.name))) is not None:
                yield from _bar(axis, first + index * wide, wide, spread, one.colour)
        if group in panel.marks:
            y = axis.at(panel.marks[group])
            ends = f'x1="{first - 6:.1f}" x2="{first + wide * len(shown) + 6:.1f}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line {ends} stroke="{_INK}" stroke-dasharray="5 4" stroke-width="1.2"/>'


def _bar(axis: _Axis, x: float, wide: float, spread: Spread, colour: str) -> Iterator[str]:
    y = axis.at(spread.median)
    inner = f'x="{x + 2:.1f}" y="{y:.1f}" width="{wide - 4:.1f}" height="{max(axis.start - y, 0.5):.1f}"'
    yield f'<rect {inner} rx="1.5" fill="{colour}"/>'
    yield from _whisker(axis, x + wide / 2, spread)
    highest = min(y, axis.at(spread.high))
    yield _text(x + wide / 2, highest - 5, figure(spread.median), anchor="middle", size=11)


def _whisker(axis: _Axis, x: float, spread: Spread) -> Iterator[str]:
    if spread.high > spread.low:
        low, high = axis.at(spread.low), axis.at(spread.high)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{_INK}" stroke-opacity="0.65"/>'


def _lines(panel: Lines, series: Sequence[Series], top: float) -> Iterator[str]:
    points = [point for line in panel.values.values() for point in line]
    axis = _vertical([level for _, spread in points for level in (spread.low, spread.high)], top, log=panel.log)
    yield from _frame(axis, panel.title, top)
    across = sorted({x for x, _ in points})
    low, high = (across[0], across[-1]) if across[0] < across[-1] else (across[0] * 0.5, across[0] * 2 + 1)
    horizontal = _Axis(low, high, _LEFT + 30, WIDTH - _RIGHT - 60, panel.log_x and low > 0)
    for x in across:
        yield _text(horizontal.at(x), top + _PANEL + 18, f"{x:,g}", anchor="middle", colour=_FAINT)
    yield _text(WIDTH - _RIGHT, top + _PANEL + 34, panel.x_title, anchor="end", colour=_FAINT)
    crowd = [(horizontal.at(x), axis.at(spread.median)) for x, spread in points]
    for one in series:
        if one.name not in panel.values:
            continue
        line = sorted(panel.values.get(one.name, ()), key=lambda point: point[0])
        places = [(horizontal.at(x), axis.at(spread.median)) for x, spread in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{one.colour}" stroke-width="2.2"/>'
        for (x, y), (_, spread) in zip(places, line, strict=True):
            yield from _whisker(axis, x, spread)
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{one.colour}"/>'
            # A line right above would run through the figure.
            below = any(other == x and 0 < y - height < 34 for other, height in crowd)
            yield _text(x + 7, y + 17 if below else y - 7, figure(spread.median), size=11, colour=one.colour)


def _vertical(levels: Sequence[float], top: float, *, log: bool) -> _Axis:
    positive = [level for level in levels if level > 0] or [1.0]
    if not log:
        return _Axis(0.0, max(positive) * 1.12, top + _PANEL, top, log=False)
    # Bars stand on a floor well below the lowest, or it would seem to be nothing.
    return _Axis(min(positive) / 2.5, max(positive) * 1.6, top + _PANEL, top, log=True)


def _frame(axis: _Axis, title: str, top: float) -> Iterator[str]:
    yield _text(24, top - 14, title, weight=600, size=13)
    for tick in axis.ticks():
        y = axis.at(tick)
        yield f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>'
        yield _text(_LEFT - 8, y + 4, f"{tick:,g}", anchor="end", colour=_FAINT, size=11)
    base = f'x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{axis.start:.1f}" y2="{axis.start:.1f}"'
    yield f'<line {base} stroke="{_FAINT}"/>'


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", colour: str = _INK, size: int = 12, weight: int = 400
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-size="{size}" font-weight="{weight}">{escape(words)}</text>'
