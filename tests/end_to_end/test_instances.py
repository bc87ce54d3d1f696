"""Several sockets with one name, and one path with several sockets in turn (behaviours 9, 13 and 37)."""

from __future__ import annotations

from pathlib import Path

from plugind.tests.end_to_end.foreign import NODE, PYDRA
from plugind.tests.end_to_end.processes import Daemon, Watch, number, plugin_process
from plugind.tests.end_to_end.sockets import NAME, place, plugins_at


def active(watch: Watch, path: Path) -> object:
    """Whether the instance at ``path`` is shown as the active one of its name; None if it is not shown."""
    return watch.now.get(str(path), {}).get("active")


async def test_the_newest_instance_is_active_during_a_rolling_update_and_the_older_one_after_a_rollback(
    shared: Daemon,
) -> None:
    """Behaviour 37: two instances of one DRA driver overlap, each with its own sockets and in its own framework."""
    directory = await place(shared, "rolling")
    old, new = directory / "driver-1-reg.sock", directory / "driver-2-reg.sock"
    name = "rolling.example.com"
    async with shared.watch() as watch, plugin_process(PYDRA.command(old, name, directory / ".1.sock")) as first:
        await first.notified_registered()
        await watch.until(lambda watch: active(watch, old) is True)
        assert watch.now[str(old)]["state"] == "registered"
        # Nothing, unless the machine is so slow that the first try took long. Each step of another try would be shown.
        first_try = [state for state in watch.states(old) if state != "registered"]
        generation = watch.now[str(old)]["generation"]
        async with plugin_process(NODE.command(new, name, directory / ".2.sock")) as second:
            await second.notified_registered()
            # The newest instance is active once it is connected, which may be after it is registered.
            await watch.until(lambda watch: [active(watch, path) for path in (old, new)] == [False, True])
            assert [watch.now[str(path)]["state"] for path in (old, new)] == ["registered", "registered"]
            assert await second.end() == 0
        # The newer instance has removed its socket, so the older one is active again, without any new call.
        await watch.state(new, "gone")
        await watch.until(lambda watch: active(watch, old) is True)
        assert watch.now[str(old)]["state"] == "registered"
        assert watch.now[str(old)]["generation"] == generation
        assert [state for state in watch.states(old) if state != "registered"] == first_try
        old.unlink()
        await watch.state(old, "gone")


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
