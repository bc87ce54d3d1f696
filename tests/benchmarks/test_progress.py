"""Benchmarks may take minutes: each shows how far it is, and what it measures is readable for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

FOLDER = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text())
#: It measures nothing.
WITHOUT_FIGURES = {"plots"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_benchmark_shows_its_progress_and_can_write_its_figures(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text()
    assert "Progress(" in source
    has_json = any(text in source for text in ("add_json_argument(", "add_file_arguments(", '"--json"'))
    assert has_json != (name in WITHOUT_FIGURES)


def test_all_benchmarks_are_found() -> None:
    assert {"compare", "churn", "storm", "wire", "leases", "scrape"} < set(PROGRAMS)
