"""The page in headless Chromium: what it shows, as it changes, with any text in it and however much there is.

One browser plays all tests of this module.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from plugind.actors.http.server import problem
from plugind.protocol.leases.values import Lease, LeaseState, ProcessIdentity, ProcessOwner, Request, Wanted
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.tests.actors.status.page.stand_in import GPU, StandIn, history, plugin, resource
from plugind.tests.end_to_end.browser import Browser, Player, browser, page_of, playing

pytestmark = pytest.mark.extended

#: The rows that are in the document, as texts of their cells.
ROWS = """[...document.querySelectorAll('#pane .grid:not([hidden]) .row')]
    .sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)
    .map((row) => [...row.children].map((cell) => cell.textContent))"""
NAMES = f"{ROWS}.map((cells) => cells[1])"
SHOWN = "document.getElementById('shown').textContent"
SENTENCE = "document.getElementById('sentence').textContent"
BANNER = "document.getElementById('banner')"
DETAILS = "document.getElementById('details')"
HEALTH = "document.getElementById('health').textContent"
#: What the header says while what is shown is old.
AWAY = r"/ away since \d\d:\d\d:\d\d[+-]\d\d:\d\d, what you see is from then$/"
#: How the counts and the health look.
LOOK = "[getComputedStyle(document.getElementById('summary')).filter, document.getElementById('health').className]"
COLOURS = "['#sentence', '#counts button'].map((it) => getComputedStyle(document.querySelector(it)).color)"
#: Clicks on the row with this name.
CLICK = """const row = [...document.querySelectorAll('#pane .grid:not([hidden]) .row')]
    .find((it) => it.children[1].textContent === arguments[0]); row.click()"""
#: Clicks on the row in this state.
CLICK_STATE = CLICK.replace("children[1]", "children[0]")
#: What would run if any of it were markup. It also has control characters, and one that turns the direction of text.
SCRIPT = (
    "</script><script>window.hit=1</script><img src=x onerror=window.hit=1>'\"><svg onload=window.hit=1>\x1b[31m\u202e"
)
DOWN, END, HOME, ENTER, ESCAPE = "\ue015", "\ue010", "\ue011", "\ue007", "\ue00c"


@pytest.fixture(scope="module", name="chromium")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@attrs.frozen
class Scene:
    """A page in the browser, and the daemon that it shows."""

    shown: Browser
    player: Player
    address: str

    def put(self, *plugins: Callable[[], PluginStatus]) -> None:
        """Set plugins, each given by what makes it: that needs the clock of the daemon."""

        def act(some: Sequence[Callable[[], PluginStatus]], daemon: StandIn) -> None:
            for made in some:
                daemon.put_plugin(made())

        # The daemon has other things to do meanwhile: one that is silent for seconds is away.
        for start in range(0, len(plugins), 250):
            self.player.do(partial(act, plugins[start : start + 250]))

    def until_names(self, *names: str) -> None:
        """Wait until these are the names in the list, in this order."""
        self.shown.until(f"JSON.stringify({NAMES}) === JSON.stringify(arguments[0])", list(names))


@pytest.fixture(name="scene")
def _scene(chromium: Browser, tmp_path: Path) -> Iterator[Scene]:
    """Show an empty node in the browser; the console of the browser must have said nothing at the end."""
    chromium.complaints()
    with playing(str(tmp_path / "s")) as player, page_of(str(tmp_path / "s")) as (address, _):
        chromium.set_width(1280, 800)
        chromium.open(address)
        chromium.until("document.getElementById('connection').textContent === 'live'")
        yield Scene(chromium, player, address)
        said = chromium.complaints()
        chromium.open("about:blank")
    assert said == []


def made(name: str, state: StateName = StateName.REGISTERED, /, **fields: object) -> Callable[[], PluginStatus]:
    return partial(plugin, name, state, **fields)


def test_plugins_are_shown_with_those_first_that_have_a_problem_and_change_as_they_do(scene: Scene) -> None:
    scene.put(made("b"), made("a"), made("z", StateName.WAITING, cause="it refused"))
    scene.until_names("z", "a", "b")
    row = scene.shown.run(f"return {ROWS}[0]")
    assert row[:4] == ["waiting", "z", "CSIPlugin", "it refused"]
    assert scene.shown.run(f"return {SENTENCE}") == "3 sockets · 2 registered · 1 problem"
    scene.put(made("z"), made("b", serving=False, not_serving="nobody listens"), made("c", StateName.DIALING))
    scene.until_names("b", "c", "a", "z")
    assert scene.shown.run(f"return {ROWS}[0]")[3] == "not serving: nobody listens"
    scene.player.do(lambda daemon: daemon.remove("/watch", "/r/b.sock"))
    scene.until_names("c", "a", "z")
    assert scene.shown.run(f"return {SENTENCE}") == "3 sockets · 2 registered · 0 problems"
    scene.player.do(lambda daemon: daemon.health.update(queued=7))
    scene.shown.until(f"{SENTENCE} === '3 sockets · 2 registered · 7 queued · 0 problems'")


def test_the_filter_finds_words_in_names_paths_states_and_causes(scene: Scene) -> None:
    scene.put(
        made("red", type="DRAPlugin"),
        made("blue", StateName.WAITING, cause="Connection refused"),
        made("green", StateName.PARKED, cause="no such version"),
        made("grey", health=Health.UNHEALTHY, health_reason="Probe failed"),
    )
    scene.until_names("blue", "green", "grey", "red")
    for typed, names in (
        ("REFUSED", ["blue"]),
        ("parked version", ["green"]),
        ("gre", ["green", "grey"]),
        ("draplugin", ["red"]),
        ("/r/red", ["red"]),
        ("probe", ["grey"]),
        ("refused version", []),
    ):
        scene.shown.press("/" + typed)
        scene.until_names(*names)
        assert scene.shown.run(f"return {SHOWN}") == f"{len(names)} of 4 sockets"
        scene.shown.press(ESCAPE)
        scene.until_names("blue", "green", "grey", "red")
        scene.shown.run("document.activeElement.blur()")
    scene.shown.run("document.getElementById('problems').click()")
    scene.until_names("blue", "green", "grey")
    scene.shown.run("document.getElementById('problems').click()")
    # A count is a button.
    scene.shown.run(
        "[...document.querySelectorAll('#counts button')].find((it) => it.ariaLabel.includes('parked')).click()"
    )
    scene.until_names("green")
    scene.shown.run("document.getElementById('chosen').click()")
    scene.until_names("blue", "green", "grey", "red")


def test_the_list_is_used_by_keys_alone(scene: Scene) -> None:
    scene.put(*(made(f"p{number:03}") for number in range(200)))
    scene.shown.until(f"{SHOWN} === '200 sockets'")
    selected = "document.querySelector('#plugins .row[aria-selected=true]')"
    scene.shown.press("/" + DOWN + DOWN + DOWN)
    scene.shown.until(f"({selected} || {{children: []}}).children[1]?.textContent === 'p001'")
    scene.shown.press(END)
    scene.shown.until(f"{selected}?.children[1].textContent === 'p199'")
    active = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    assert scene.shown.run(f"return {active} === {selected}")
    assert scene.shown.run("return document.activeElement.getAttribute('aria-rowcount')") == "201"
    assert scene.shown.run(f"return {selected}.getAttribute('aria-rowindex')") == "201"
    scene.shown.press(ENTER)
    scene.shown.until(f"!{DETAILS}.hidden && {DETAILS}.textContent.includes('p199')")
    scene.shown.press(ESCAPE)
    scene.shown.until(f"{DETAILS}.hidden && document.activeElement.id === 'plugins'")
    scene.shown.press(HOME)
    scene.shown.until(f"{selected}?.children[1].textContent === 'p000'")


def test_a_title_sorts_the_list_by_its_column_also_by_keys(scene: Scene) -> None:
    scene.put(made("a", type="Zebra"), made("b", type="Ant"), made("c", StateName.PARKED, type="Mole", cause="no"))
    scene.until_names("c", "a", "b")
    scene.shown.run("document.querySelectorAll('#plugins .head button')[2].focus()")
    scene.shown.press(ENTER)
    scene.until_names("b", "c", "a")
    title = "document.activeElement.textContent + document.activeElement.ariaSort"
    assert scene.shown.run(f"return {title}") == "Type ↑ascending"
    scene.shown.press(ENTER)
    scene.until_names("a", "c", "b")
    assert scene.shown.run(f"return {title}") == "Type ↓descending"
    scene.put(made("d", type="Yak"))
    scene.until_names("a", "d", "c", "b")


def test_the_history_of_a_plugin_is_a_timeline_that_grows(scene: Scene) -> None:
    past = ((90.0, StateName.DIALING, None), (88.5, StateName.WAITING, "it refused"), (30.0, StateName.DIALING, None))
    scene.put(lambda: plugin("a", history=history(*past, (29.5, StateName.REGISTERED, None))))
    scene.until_names("a")
    scene.shown.run(CLICK, "a")
    parts = """[...document.querySelectorAll('#details .timeline li')].map((it) =>
        ['strong', '.when', '.why'].map((part) => it.querySelector(part)?.textContent ?? null))"""
    scene.shown.until(f"{parts}.length === 4")
    shown = scene.shown.run(f"return {parts}")
    assert [state for state, _, _ in shown] == ["registered", "dialing", "waiting", "dialing"]
    lasted = [when.partition(", ")[2] for _, when, _ in shown]
    assert re.fullmatch(r"for \d+ s now", lasted[0])
    assert lasted[1:] == [
        *("for 500 ms", "for 58.5 s", "for 1.5 s"),
    ]
    assert [why for _, _, why in shown] == [None, None, "it refused", None]
    assert scene.shown.run("return document.querySelectorAll('#details .strip span').length") == 4
    scene.put(lambda: plugin("a", StateName.STALE, history=history(*past, (0.0, StateName.STALE, "it has left"))))
    scene.shown.until(f"{parts}[0][0] === 'stale' && {parts}[0][2] === 'it has left'")


def test_devices_are_shown_with_their_holders_and_leases_with_their_devices(scene: Scene) -> None:
    owner = ProcessOwner(ProcessIdentity(991, 7, "boot"))
    lease = Lease("train", 4_000_000, Request((Wanted(GPU, 1),)), owner, LeaseState.HELD, 5.0, {GPU: ("d1",)})

    def act(daemon: StandIn) -> None:
        daemon.put_resource(resource(d0="Healthy", d1="Healthy", d2="Sick"))
        daemon.put_lease(lease)

    scene.player.do(act)
    scene.shown.run("document.getElementById('tab-resources').click()")
    # The lease may come a batch later than the devices.
    row = f"JSON.stringify({ROWS}[0]?.slice(0, 4)) === JSON.stringify(arguments[0])"
    scene.shown.until(row, ["listed", GPU, "2 of 3", "1"])
    scene.shown.run(CLICK, GPU)
    devices = """[...document.querySelectorAll('#details .row')].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)
        .map((row) => [row.children[0].textContent, row.children[1].textContent, row.children[3].textContent])"""
    scene.shown.until(f"{devices}.length === 3")
    holder = "train: process 991, user 4000000"
    assert scene.shown.run(f"return {devices}") == [
        ["d2", "Sick", "free"],
        ["d0", "Healthy", "free"],
        ["d1", "Healthy", holder],
    ]
    scene.player.do(lambda daemon: daemon.put_lease(attrs.evolve(lease, devices={GPU: ("d0",)})))
    scene.shown.until(f"JSON.stringify({devices}[1]) === JSON.stringify(arguments[0])", ["d0", "Healthy", holder])
    scene.shown.run("document.getElementById('tab-leases').click()")
    scene.shown.until(row.replace("4", "5"), ["held", "train", "user 4000000", "process 991", f"{GPU}=d0"])
    scene.player.do(lambda daemon: daemon.remove("/v1/leases/watch", "train"))
    scene.until_names()


def test_a_script_in_every_field_is_text(scene: Scene) -> None:
    """The policy of the page would refuse a script; a refusal is in the console, which has to be silent."""

    def act(daemon: StandIn) -> None:
        with_script = {"name": SCRIPT, "type": SCRIPT, "reason": SCRIPT, "cause": SCRIPT, "root": SCRIPT}
        with_script |= {"endpoint": SCRIPT, "not_serving": SCRIPT, "health_reason": SCRIPT}
        more: dict[str, object] = {"versions": (SCRIPT,), "warnings": (SCRIPT,), "facts": ((SCRIPT, SCRIPT),)}
        past = history((9.0, StateName.WAITING, SCRIPT), (5.0, StateName.DIALING, SCRIPT))
        for number, state in enumerate(StateName):
            if state is not StateName.GONE:
                made = plugin(f"p{number}", state, **with_script, **more, history=past)
                daemon.put_plugin(attrs.evolve(made, socket=f"/r/{number}{SCRIPT}"))
        # What no daemon says of itself: words where it has its own.
        entry = {**daemon.tables["/watch"][f"/r/0{SCRIPT}"], "socket": SCRIPT, "state": SCRIPT, "health": SCRIPT}
        entry |= {"attempt": SCRIPT, "since": SCRIPT, "next_try_at": SCRIPT, "pid": SCRIPT, "uid": SCRIPT}
        daemon.put("/watch", entry)
        daemon.described[SCRIPT] = {
            **daemon.described[f"/r/0{SCRIPT}"],
            **entry,
            "device_plugin": dict.fromkeys(
                ("resource", "healthy", "devices", "lists", "last_list", "lost_since", "reason", "warning"), SCRIPT
            ),
        }
        listed = resource(SCRIPT, **{SCRIPT: SCRIPT, "d0": "Healthy"})
        daemon.put_resource(attrs.evolve(listed, socket=SCRIPT, reason=SCRIPT))
        daemon.put(
            "/v1/devices/watch", {**daemon.tables["/v1/devices/watch"][SCRIPT], "state": SCRIPT, "capacity": SCRIPT}
        )
        owner = ProcessOwner(ProcessIdentity(991, 7, SCRIPT))
        lease = Lease(SCRIPT, 0, Request((Wanted(SCRIPT, 1),)), owner, LeaseState.HELD, 5.0, {SCRIPT: (SCRIPT,)})
        daemon.put_lease(attrs.evolve(lease, reason=SCRIPT, warnings=(SCRIPT,)))
        daemon.put("/v1/leases/watch", {**daemon.tables["/v1/leases/watch"][SCRIPT], "state": SCRIPT, "uid": SCRIPT})
        daemon.health = {
            "status": SCRIPT,
            "roots": [{"root": SCRIPT, "status": SCRIPT, "reason": SCRIPT}],
            "actors": [],
        }

    scene.player.do(act)
    text = "</script><script>window.hit=1</script><img src=x onerror=window.hit=1>'\"><svg onload=window.hit=1>"
    text += "\\x1b[31m\\u{202e}"
    number = len(StateName)  # A word that is none takes the place of the one for sockets that are gone.
    scene.shown.until(f"{SHOWN} === '{number} sockets'")
    scene.shown.until("document.getElementById('health').textContent === arguments[0]", text)
    for tab, rows in (("plugins", number), ("resources", 1), ("leases", 1)):
        scene.shown.run(f"document.getElementById('tab-{tab}').click()")
        scene.shown.until(f"{ROWS}.length === {rows}")
        names = scene.shown.run(f"return {NAMES}")
        assert {*names} == {text}
        states = ("registered", "waiting", text) if tab == "plugins" else (text,)
        for state in states:
            scene.shown.run(CLICK_STATE, state)
            asked = {"plugins": ".timeline .why", "resources": ".row", "leases": ".facts"}[tab]
            scene.shown.until(
                f"document.querySelector('#details {asked}') && {DETAILS}.textContent.includes(arguments[0])", text
            )
            assert scene.shown.run("return document.querySelectorAll('#details :is(script, img, svg)').length") == 0
            scene.shown.press(ESCAPE)
    elements = scene.shown.run(
        "return [...document.querySelectorAll('script, img, svg, iframe')].map((it) => it.tagName)"
    )
    assert elements == ["SCRIPT"]
    assert scene.shown.run("return window.hit === undefined")
    scene.player.do(lambda daemon: daemon.tables["/watch"].clear())


def test_the_policy_refuses_what_the_page_does_not_need(chromium: Browser, tmp_path: Path) -> None:
    """That the console is silent in the other tests means something only if it is not silent here."""
    ways = (
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
        "document.body.innerHTML = '<img src=x>'",
        "const it = document.createElement('script'); it.text = 'window.hit = 1'; document.body.append(it)",
        "const it = document.createElement('a'); it.href = 'javascript:0'; document.body.append(it); it.click()",
        "const it = document.createElement('style'); it.textContent = '* {}'; document.body.append(it)",
        "const it = document.createElement('img'); it.src = 'http://127.0.0.2:1/'; document.body.append(it)",
        "const it = document.createElement('iframe'); it.src = 'http://127.0.0.2:1/'; document.body.append(it)",
        "const it = document.createElement('form'); it.action = '/x'; document.body.append(it); it.submit()",
        "fetch('http://127.0.0.2:1/').catch(() => {})",
        "new WebSocket('ws://127.0.0.2:1/')",
    )
    with playing(str(tmp_path / "s")) as player, page_of(player.daemon.path) as (address, _):
        chromium.open(address)
        chromium.until("document.getElementById('connection').textContent === 'live'")
        for way in ways:
            chromium.complaints()
            chromium.run(f"try {{ {way} }} catch (error) {{ console.error(error) }}")
            chromium.until_complaint("Content Security Policy|TrustedHTML|TrustedScript")
        assert chromium.run("return window.hit === undefined")
        chromium.open("about:blank")


def test_ten_thousand_plugins_are_readable_and_a_storm_of_them_is_shown(scene: Scene) -> None:
    scene.put(*(made(f"p{number:05}") for number in range(10_000)))
    scene.shown.until(f"{SHOWN} === '10,000 sockets'")
    count = "document.querySelectorAll('.row').length"
    assert 10 < scene.shown.run(f"return {count}") < 60
    scene.shown.run("document.getElementById('plugins').focus()")
    scene.shown.press(END)
    scene.shown.until(f"{NAMES}.at(-1) === 'p09999'")
    # Where the last row is, is what is visible of the list.
    below = """(() => {
        const row = [...document.querySelectorAll('.row')].find((it) => it.textContent.includes('p09999'));
        return row.getBoundingClientRect().bottom - document.getElementById('plugins').getBoundingClientRect().bottom;
    })()"""
    assert -60 < scene.shown.run(f"return {below}") <= 1
    assert 10 < scene.shown.run(f"return {count}") < 60
    scene.shown.run("document.getElementById('plugins').scrollTop = 180000")
    scene.shown.until(f"{NAMES}.includes('p05000')")
    for state in (StateName.WAITING, StateName.DIALING, StateName.REGISTERED, StateName.WAITING):
        scene.put(*(made(f"p{number:05}", state, cause="a storm") for number in range(10_000)))
    scene.shown.until(f"{SENTENCE} === '10,000 sockets · 0 registered · 10,000 problems'")
    assert scene.player.daemon.asked.count("/watch") == 1
    scene.shown.press("/p0777")
    scene.until_names(*(f"p0777{number}" for number in range(10)))


def test_a_page_of_a_telephone_needs_no_scrolling_aside(scene: Scene) -> None:
    long = "x" * 200
    scene.put(made("a", StateName.WAITING, cause="x" * 500), made("b", name=long, type="T" * 100))
    scene.shown.set_width(320, 640, mobile=True)
    scene.until_names("a", long)
    assert scene.shown.run("return innerWidth") == 320
    wide = """[...document.querySelectorAll('body *')].filter((it) => it.getBoundingClientRect().right > 321
        && !it.closest('.scroll, .grid')).map((it) => it.outerHTML)"""
    assert scene.shown.run("return document.documentElement.scrollWidth") == 320
    assert scene.shown.run(f"return {wide}") == []
    grid = "document.getElementById('plugins')"
    assert scene.shown.run(f"return {grid}.scrollWidth <= {grid}.clientWidth")
    scene.shown.run(CLICK, long)
    scene.shown.until(f"{DETAILS}.textContent.includes('CSI') || {DETAILS}.textContent.includes('TTT')")
    assert scene.shown.run("return document.documentElement.scrollWidth") == 320
    assert scene.shown.run(f"return {DETAILS}.scrollWidth <= {DETAILS}.clientWidth")
    scene.shown.press(ESCAPE)
    scene.shown.until(f"{DETAILS}.hidden")


@pytest.mark.parametrize("only_leases", [True, False])
def test_who_has_what_is_the_first_list_of_who_may_only_lease_also_on_a_telephone(
    scene: Scene, only_leases: bool
) -> None:
    """Devices are in natural order, and those who wait are last, in the order of the line."""
    owner = ProcessOwner(ProcessIdentity(991, 7, "boot"))
    held = Lease("train", 4_000_000, Request((Wanted(GPU, 1),), pool="lab"), owner, LeaseState.HELD, 5.0)
    waits = attrs.evolve(held, id="b", state=LeaseState.QUEUED, created=6.0, request=Request((Wanted(GPU, 3),)))

    def act(daemon: StandIn) -> None:
        if only_leases:
            for path in ("/watch", "/healthz", "/"):
                daemon.instead[path] = problem(403, "you may only see and lease devices")
        daemon.put_resource(resource(d10="Healthy", d2="Healthy", d3="Sick", d4="Healthy", d5="Healthy"))
        devices: Any = daemon.devices[GPU]["devices"]
        marks = {"d10": {"pool": "lab"}, "d4": {"drained": {"reason": "a fan"}}, "d5": {"withheld": "it is elsewhere"}}
        for device in devices:
            device.update(marks.get(device["id"], {}))
        daemon.put_lease(attrs.evolve(held, devices={GPU: ("d10", "d11")}))
        daemon.put_lease(waits)
        daemon.put_lease(attrs.evolve(waits, id="a", created=7.0))
        daemon.end_watches()  # They are asked for again.

    scene.player.do(act)
    if not only_leases:
        scene.shown.run("document.getElementById('tab-who').click()")
    expected = [
        ["free", f"{GPU}=d2", "", "", "", ""],
        ["unhealthy", f"{GPU}=d3", "", "Sick", "", ""],
        ["drained", f"{GPU}=d4", "", "a fan", "", ""],
        ["withheld", f"{GPU}=d5", "", "it is elsewhere", "", ""],
        ["held", f"{GPU}=d10", "user 4000000", "train", "it ends", "lab"],
        ["unhealthy", f"{GPU}=d11", "user 4000000", "train: not listed", "it ends", ""],
        ["waits", f"3 of {GPU}", "user 4000000", "b", "it ends", ""],
        ["waits", f"3 of {GPU}", "user 4000000", "a", "it ends", ""],
    ]
    scene.shown.until(f"JSON.stringify({ROWS}.map((it) => it.slice(0, 6))) === JSON.stringify(arguments[0])", expected)
    tabs = "[...document.querySelectorAll('#tabs button')].filter((it) => it.offsetWidth).map((it) => it.textContent)"
    plugins = [] if only_leases else ["Plugins"]
    assert scene.shown.run(f"return {tabs}") == [*plugins, "Devices", "Leases", "Who"]
    scene.shown.until(f"{BANNER}.hidden && document.getElementById('connection').textContent === 'live'")
    scene.shown.set_width(390, 844, mobile=True)
    scene.shown.until("innerWidth === 390")
    assert scene.shown.run("return document.documentElement.scrollWidth") == 390
    cut = """[...document.querySelectorAll('#who .cell')]
        .filter((it) => it.offsetWidth && it.scrollWidth > it.clientWidth).map((it) => it.textContent)"""
    assert scene.shown.run(f"return {cut}") == []
    scene.shown.run(CLICK, f"{GPU}=d10")
    scene.shown.until(f"!{DETAILS}.hidden && {DETAILS}.querySelector('h2').textContent === 'train'")
    scene.shown.press(ESCAPE)
    scene.shown.run(CLICK, f"{GPU}=d5")
    scene.shown.until(f"{DETAILS}.textContent.includes('it is elsewhere')")
    scene.shown.press(ESCAPE)
    scene.shown.run("document.getElementById('tab-leases').click()")
    visible = "[...it.children].filter((cell) => cell.offsetWidth).map((cell) => cell.textContent)"
    leases = f"[...document.querySelectorAll('#leases .row')].map((it) => {visible}.slice(0, 4))"
    expected = [
        ["queued", "a", "user 4000000", f"waits for 3 of {GPU}"],
        ["queued", "b", "user 4000000", f"waits for 3 of {GPU}"],
        ["held", "train", "user 4000000", f"{GPU}=d10, {GPU}=d11"],
    ]
    scene.shown.until(f"JSON.stringify({leases}) === JSON.stringify(arguments[0])", expected)


def test_a_node_that_has_devices_and_no_plugins_begins_with_who_has_them(scene: Scene) -> None:
    chosen = "document.querySelector('#tabs [aria-selected=true]').textContent"
    scene.player.do(lambda daemon: daemon.put_resource(resource(d1="Healthy")))
    scene.shown.run("document.getElementById('tab-resources').click()")
    scene.shown.until("document.querySelectorAll('#resources .row').length === 1")
    scene.shown.run("location.reload()")
    scene.shown.until(f"{chosen} === 'Who' && {ROWS}.some((row) => row[1] === '{GPU}=d1')")
    scene.put(made("a"))
    scene.shown.run("document.getElementById('tab-plugins').click()")
    scene.until_names("a")
    scene.shown.run("location.reload()")
    scene.until_names("a")
    assert scene.shown.run(f"return {chosen}") == "Plugins"


def test_the_token_leaves_the_address_and_the_page_can_be_loaded_again(scene: Scene) -> None:
    scene.put(made("a"))
    scene.until_names("a")
    assert "#" in scene.address
    assert scene.shown.run("return location.href") == scene.address.partition("#")[0]
    assert scene.shown.run("return document.cookie + JSON.stringify({...localStorage})") == "{}"
    scene.shown.run("location.reload()")
    scene.until_names("a")


def test_a_page_without_the_token_says_where_to_find_it(scene: Scene) -> None:
    scene.shown.run("sessionStorage.clear()")
    scene.shown.open(scene.address.partition("#")[0])
    scene.shown.until(f"{BANNER}.textContent.includes('plugind page')")
    assert "401" in "".join(scene.shown.complaints())


def test_a_daemon_that_has_gone_is_away_since_then_and_what_it_has_said_stays_without_colours(scene: Scene) -> None:
    scene.put(made("a"))
    scene.until_names("a")
    scene.shown.until(f"{HEALTH} === 'ok'")
    scene.shown.until("document.title.startsWith('plugind on ')")
    assert scene.shown.run(f"return {LOOK}") == ["none", "mark ok"]
    coloured = scene.shown.run(f"return {COLOURS}")

    def leave(daemon: StandIn) -> None:
        daemon.instead["/watch"] = problem(503, "the node is about to stop")
        daemon.end_watches()

    scene.player.do(leave)
    scene.shown.until(f"{AWAY}.test({HEALTH})")
    assert scene.shown.run(f"return {HEALTH}").startswith("daemon away since ")
    assert scene.shown.run(f"return {LOOK}") == ["grayscale(1)", "mark bad"]
    # The end of the watch is said first, and then why there is none.
    scene.shown.until(f"{BANNER}.textContent === 'The daemon does not answer: the node is about to stop.'")
    # Text is grey, and no lighter than it may be.
    faint = scene.shown.run("return getComputedStyle(document.getElementById('shown')).color")
    assert scene.shown.run(f"return {COLOURS}") == [faint] * 2
    assert faint not in coloured
    assert scene.shown.run("return document.title.startsWith('away: plugind on ')")
    # Nothing grows older than it was then.
    assert scene.shown.run(f"return {ROWS}[0][4]") == scene.shown.run(
        f"return new Promise((done) => setTimeout(() => done({ROWS}[0][4]), 2100))"
    )
    scene.until_names("a")
    scene.player.do(lambda daemon: daemon.instead.clear())
    scene.shown.until(f"{BANNER}.hidden && document.getElementById('connection').textContent === 'live'")
    scene.shown.until(f"{HEALTH} === 'ok'")
    assert scene.shown.run(f"return {LOOK}") == ["none", "mark ok"]
    assert scene.shown.run(f"return {COLOURS}") == coloured


def test_a_server_that_is_silent_or_has_gone_is_said_and_what_was_shown_stays(
    chromium: Browser, tmp_path: Path
) -> None:
    with playing(str(tmp_path / "s")) as player:
        player.do(lambda daemon: daemon.put_plugin(plugin("a")))
        with page_of(str(tmp_path / "s")) as (address, process):
            chromium.open(address)
            chromium.until(f"{NAMES}[0] === 'a' && {HEALTH} === 'ok'")
            process.send_signal(signal.SIGSTOP)
            chromium.until(f"{AWAY}.test({HEALTH})")
            assert chromium.run(f"return {HEALTH}").startswith("'plugind page' away since ")
            assert "is silent" in chromium.run(f"return {BANNER}.textContent")
            process.send_signal(signal.SIGCONT)
            chromium.until(f"{HEALTH} === 'ok' && document.body.className === ''")
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
            chromium.until(f"{BANNER}.textContent.includes('does not answer any more')")
            assert chromium.run(f"return {NAMES}") == ["a"]
            assert chromium.run(f"return {AWAY}.test({HEALTH})")
    chromium.open("about:blank")
