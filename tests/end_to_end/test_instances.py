"""Several sockets with one name, and one path with several sockets in turn (behaviours 9, 13 and 37)."""

from __future__ import annotations

from pathlib import Path

from plugind.tests.end_to_end.processes import Daemon, number
from plugind.tests.end_to_end.sockets import NAME, place, plugins_at


async def test_the_last_of_many_sockets_in_quick_succession_on_one_path_is_registered(
    patient: Daemon, tmp_path: Path
) -> None:
    """Behaviours 9, 13 and 20: results for a socket that is gone are ignored."""
    path = await place(patient, "churn") / "a.sock"
    staged = [tmp_path / str(index) for index in range(30)]
    async with patient.watch() as watch, plugins_at(*staged):
        for index, old in enumerate(staged[:-1]):
            # Every second socket replaces the other by rename; before the others there is a gap.
            if index % 2:
                path.unlink()
            old.rename(path)
        staged[-1].rename(path)
        await watch.until(lambda watch: watch.now.get(str(path), {}).get("name") == NAME.format(29))
        last = await watch.state(path, "registered")
        assert last["attempt"] == 1
        generations = [number(plugin["generation"]) for plugin in watch.changes if plugin["socket"] == str(path)]
        assert generations == sorted(generations)
        # Nothing remains once the path is removed.
        path.unlink()
        await watch.state(path, "gone", after=number(last["generation"]) - 1)
        assert str(path) not in await patient.plugins()
