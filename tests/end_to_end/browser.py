"""A page in headless Chromium, of a daemon that a test plays."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from plugind.tests.actors.status.page.stand_in import StandIn, standing_in
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND

#: No sandbox, because tests may run as root; no first steps of a new user, and nothing from the network.
_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


@attrs.define
class Browser:
    """One browser with one page."""

    _driver: Any

    def open(self, address: str) -> None:
        """Open an address. What the last page has kept is gone."""
        self._driver.get("about:blank")
        self._driver.get(address)

    def run(self, script: str, *arguments: object) -> Any:
        """Run the body of a function in the page; return what it returns."""
        return self._driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: object) -> Any:
        """Wait until an expression is true; return its value."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if found := self.run(f"return {script}", *arguments):
                return found
            time.sleep(0.02)
        raise AssertionError(
            f"{script} is not true; the page says: {self.run('return document.body.innerText')[:2000]}"
        )

    def press(self, keys: str) -> None:
        """Press keys, wherever the focus is."""
        self._driver.switch_to.active_element.send_keys(keys)

    def set_width(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Set the size of the page in its own pixels; a window cannot be as narrow as a telephone."""
        metrics: dict[str, object] = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self._command("Emulation.setDeviceMetricsOverride", metrics)

    def set_dark(self, dark: bool) -> None:
        """Have the user prefer a dark page, or a light one."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [feature]})

    def picture(self, path: Path) -> None:
        """Write a picture of what is visible."""
        path.write_bytes(self._driver.get_screenshot_as_png())

    def complaints(self) -> list[str]:
        """Return what the console of the browser has said since the last call: errors, refusals of the policy."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def until_complaint(self, pattern: str) -> None:
        """Wait until the console of the browser says what matches ``pattern``."""
        end, said = time.monotonic() + DEADLINE, list[str]()
        while not any(re.search(pattern, line) for line in said):
            assert time.monotonic() < end, f"{pattern} is not among {said}"
            time.sleep(0.02)
            said += self.complaints()

    def _command(self, name: str, parameters: dict[str, object]) -> Any:
        return self._driver.execute_cdp_cmd(name, parameters)


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """Start a browser; skip the test where there is none."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed (PyPI package selenium, in the extra dev)"
    )
    chrome = pytest.importorskip("selenium.webdriver.chrome.service")
    driver, chromium = program("chromedriver"), program("chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (*_ARGUMENTS, f"--user-data-dir={directory}"):
        options.add_argument(argument)
    started = webdriver.Chrome(options=options, service=chrome.Service(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()


@attrs.define
class Player:
    """A daemon that a test plays from another thread."""

    daemon: StandIn
    _token: trio.lowlevel.TrioToken

    def do(self, act: Callable[[StandIn], object]) -> None:
        """Call ``act`` in the thread of the daemon."""
        trio.from_thread.run_sync(act, self.daemon, trio_token=self._token)


@contextmanager
def playing(path: str) -> Iterator[Player]:
    """Play a daemon at ``path`` for the duration of the block."""
    started: queue.Queue[Player] = queue.Queue()
    scope = trio.CancelScope()

    async def play() -> None:
        with scope:
            async with standing_in(path) as daemon:
                started.put(Player(daemon, trio.lowlevel.current_trio_token()))
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(play,))
    thread.start()
    player = started.get(timeout=DEADLINE)
    try:
        yield player
    finally:
        player.do(lambda _: scope.cancel())
        thread.join()


@contextmanager
def page_of(status: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run ``plugind page``; yield the address that it prints, and its process."""
    # On a busy machine the daemon of a test may be silent for seconds.
    command = [*PLUGIND, "page", "--status", status, "--answer-timeout", str(DEADLINE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip(), process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
