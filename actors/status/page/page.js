"use strict";
// The program of the page. All text of plugins is put into the document as text (textContent), and never as markup: the
// policy of the page (trusted-types 'none') would refuse markup anyway.
(() => {
  const byId = (id) => document.getElementById(id);

  // --- text ----------------------------------------------------------------------------------------------------------

  // What does not print as itself: control characters, bidirectional and other invisible ones, halves of pairs.
  const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}]/gu;

  function printable(text) {
    return String(text).replace(INVISIBLE, (it) => {
      const code = it.codePointAt(0);
      return code <= 0xff ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u{${code.toString(16)}}`;
    });
  }

  function duration(seconds) {
    const s = Math.max(0, Math.floor(seconds));
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  }

  function precise(seconds) {
    if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
    return seconds < 60 ? `${seconds.toFixed(1)} s` : duration(seconds);
  }

  // Times are those of the browser's zone, with their offset, in the form that the commands have: 14:03:05+01:00.
  const two = (number) => String(number).padStart(2, "0");
  const dateOf = (when) => `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;

  function timeOf(when) {
    const offset = Math.abs(when.getTimezoneOffset());
    const sign = when.getTimezoneOffset() > 0 ? "-" : "+";
    const time = [when.getHours(), when.getMinutes(), when.getSeconds()].map(two).join(":");
    return `${time}${sign}${two(Math.floor(offset / 60))}:${two(offset % 60)}`;
  }

  // Whether it is a number of seconds that is a date, too.
  const isTime = (unix) => typeof unix === "number" && !Number.isNaN(new Date(unix * 1000).getTime());

  // The time of day; with the date unless that is the one of today.
  function clock(unix) {
    if (!isTime(unix)) return "at a time unknown";
    const when = new Date(unix * 1000);
    return dateOf(when) === dateOf(new Date(now() * 1000)) ? timeOf(when) : `${dateOf(when)} ${timeOf(when)}`;
  }

  // The whole date, here and in UTC.
  function whole(unix) {
    if (!isTime(unix)) return "";
    const when = new Date(unix * 1000);
    return `${dateOf(when)} ${timeOf(when)}, in UTC ${when.toISOString().replace("T", " ").replace(/\..*/, "")}`;
  }

  const unixOf = (text) => (text ? Date.parse(text) / 1000 : null);
  const many = (number, one, more) => `${number.toLocaleString("en")} ${number === 1 ? one : more}`;

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined && text !== null) made.textContent = printable(text);
    return made;
  }

  function setText(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  function timeElement(unix, className) {
    const made = element("time", className, clock(unix));
    if (isTime(unix)) {
      made.dateTime = new Date(unix * 1000).toISOString();
      made.title = whole(unix);
    }
    return made;
  }

  // The key that orders texts as people do: gpu-2 is before gpu-10.
  const natural = (text) =>
    String(text).replace(/[0-9]+/g, (digits) => {
      const number = digits.replace(/^0+/, "");
      return String(number.length).padStart(8, "0") + number;
    });

  // Texts that tell how long something has been so. They are written anew each second, as long as they are visible.
  let running = [];
  function runningText(tag, className, text) {
    const made = element(tag, className, text());
    running.push({ made, text });
    return made;
  }

  // --- what is known -------------------------------------------------------------------------------------------------

  const tables = { plugins: new Map(), resources: new Map(), leases: new Map(), who: new Map(), node: new Map() };
  // Which lease has a device: by resource, and by the id of the device.
  let holders = new Map();
  // Seconds by which the clock of the node is ahead of this one.
  let ahead = 0;
  // When that stopped which is shown, by the clock of the node; null while it is as the daemon says now.
  let stopped = null;
  const now = () => (stopped === null ? Date.now() / 1000 + ahead : stopped);

  // What the words mean, as docs/states.md says it.
  const MEANINGS = {
    plugins: {
      registered: "The handler has accepted it, and the plugin has been told.",
      observed: "With --observe: it has said what it is, and another consumer, such as a kubelet, registers it.",
      waiting:
        "The last try failed, or earlier plugins at the path had short lives. The next try comes after a delay that doubles from 0.5 s to 122 s, and up to a tenth more.",
      parked:
        "It is not tried again by itself: nobody handles its type, its user is not trusted, or it is at the path of a plugin that has another name.",
      stale: "Nobody listens on the socket: the file was left behind.",
      registering: "A try to register it is under way.",
      leaving: "It is being deregistered.",
      gone: "The socket is gone.",
      standby:
        "It is registered, and not in use: another instance of the name is used now, or a plugin of another name has its endpoint.",
    },
    resources: {
      awaited: "known from before a restart, while no plugin has registered for it",
      starting: "A plugin has registered, and has listed no device yet.",
      listed: "The list of its devices is kept up to date.",
      lost: "No plugin does any more: its devices count as unhealthy, and it goes after five minutes.",
      gone: "It is no longer known.",
    },
    leases: {
      queued: "It waits in line for devices.",
      choosing: "Its devices are being chosen.",
      pending: "Its devices are fixed, and their plugins prepare them.",
      held: "Its owner has the devices.",
      uncertain: "Whether a plugin has prepared its devices is not known: nobody gets them.",
      gone: "It has ended.",
    },
  };
  const STEPS = {
    dial: "plugind connects to the socket.",
    info: "The plugin is asked who it is (GetInfo).",
    claim: "It waits until it is admitted to its name.",
    validate: "Its handler judges its name and versions.",
    register: "Its handler registers it.",
    notify: "The plugin is told whether it is registered.",
  };
  const meaningOf = (table, state) => {
    const meanings = table === "who" ? WHO : MEANINGS[table];
    return Object.hasOwn(meanings, state) ? meanings[state] : "";
  };
  // The states of devices. One that is leased can have the state of the lease, too.
  const WHO = {
    ...MEANINGS.leases,
    free: "It can be leased.",
    unhealthy: "It is not given to anybody.",
    drained: "It is out of service: whoever has it keeps it, and nobody else gets it.",
    withheld: "It is not known to be free, and not given to anybody.",
    waits: "The request waits in line for devices.",
  };
  // The state of an entry, with the step of a try that is under way.
  const stateOf = (it) => (it.step ? `${it.state} (${it.step})` : it.state);
  const STANDBY = "standby";
  // Each state has a column among the counts, those that last first, so that none moves as plugins change.
  const STATES = Object.keys(MEANINGS.plugins).filter((it) => it !== "gone" && it !== STANDBY);
  const TONES = ["bad", "warn", "busy", "idle", "ok"];

  // Observed plugins are those of another consumer, which has registered them.
  const isSettled = (it) => it.state === "registered" || it.state === "observed";

  function toneOfPlugin(it) {
    if (isSettled(it)) {
      if (it.serving === false || it.health === "unhealthy" || it.health === "disconnected") return "bad";
      if (it.warnings && it.warnings.length) return "warn";
      return it.active === false ? "idle" : "ok";
    }
    if (it.state === "parked" || it.cause) return "bad";
    return it.state === "stale" ? "warn" : "busy";
  }

  function causeOfPlugin(it) {
    if (isSettled(it)) {
      if (it.serving === false) return `not serving: ${it.not_serving || "nobody listens"}`;
      if (it.health === "unhealthy" || it.health === "disconnected") {
        return `${it.health}${it.health_reason ? ": " + it.health_reason : ""}`;
      }
      const warnings = Array.isArray(it.warnings) ? it.warnings : [];
      const stands = it.active === false && !warnings.length ? ["another instance of the name is used"] : [];
      return [...stands, ...warnings].join("; ");
    }
    return it.cause || it.reason || "";
  }

  // The word of the list for a state: some plugins are registered, and not in use.
  const wordOf = (it) => (it.state === "registered" && it.active === false ? STANDBY : stateOf(it));

  const userOf = (uid, name) => `user ${uid}${name ? ` (${name})` : uid === 0 ? " (root)" : ""}`;

  // Who has a lease, and until when, if that is a time.
  function ownerOf(lease) {
    const owner = lease.owner || {};
    const end = endOf(lease);
    switch (owner.kind) {
      case "process": return `process ${owner.pid}`;
      case "container": return owner.init ? `container, process ${owner.init.pid}` : "container that does not run";
      case "time": return end === null ? `ttl of ${lasting(owner.seconds)}` : `ttl, until ${clock(end)}`;
      case "connection": return "connection";
      default: return "nobody, until it is released";
    }
  }

  const lasting = (seconds) => (typeof seconds === "number" ? duration(seconds) : "a time unknown");
  const endOf = (lease) => {
    const left = lease.owner && lease.owner.ends_in;
    return typeof left === "number" ? (unixOf(lease.time) || now()) + left : null;
  };
  const holderOf = (lease) => `${ownerOf(lease)}, ${userOf(lease.uid, lease.user)}`;

  function devicesOf(lease) {
    return Object.entries(lease.devices || {}).flatMap(([resource, ids]) => ids.map((id) => `${resource}=${id}`));
  }

  function wantedOf(lease) {
    const wanted = (lease.request && lease.request.resources) || {};
    return Object.entries(wanted).map(([resource, count]) => `waits for ${count} of ${resource}`);
  }

  function leasedOf(resource) {
    const found = holders.get(resource);
    return found ? found.size : 0;
  }

  // What is shown and searched of an entry is computed once for each change of it.
  const COMPLETE = {
    plugins(it) {
      it.tone = toneOfPlugin(it);
      it.why = causeOfPlugin(it);
      it.from = unixOf(it.since);
      it.label = it.name === null || it.name === undefined ? it.key : it.name;
      it.kind = it.type || "no type yet";
      it.words = [it.label, it.key, it.kind, it.state, wordOf(it), it.why, it.reason, it.health];
    },
    resources(it) {
      it.tone = it.state === "listed" ? (it.allocatable < it.capacity ? "warn" : "ok") : it.state === "lost" ? "bad" : "busy";
      it.why = it.reason || "";
      it.from = unixOf(it.since);
      it.label = it.key;
      it.words = [it.key, it.state, it.why, it.plugin];
    },
    leases(it) {
      it.tone = it.state === "held" ? "ok" : it.state === "uncertain" ? "bad" : "busy";
      const devices = devicesOf(it);
      it.why = it.reason || (devices.length ? devices : wantedOf(it)).join(", ");
      it.from = typeof it.created_unix === "number" ? it.created_unix : null;
      it.label = it.key;
      it.words = [it.key, it.state, holderOf(it), it.why, ...devices];
    },
  };

  const hidden = (it) => {
    if (it.hay === undefined) it.hay = it.words.filter((word) => word).join("\n").toLowerCase();
    return it.hay;
  };

  function take(name, content) {
    if (name === "anew") {
      tables[content].clear();
      return;
    }
    if (name === "end") {
      ahead = content.time - Date.now() / 1000;
      draw();
      return;
    }
    for (const [table, entries] of Object.entries(content)) {
      for (const [key, entry] of Object.entries(entries)) {
        if (entry === null) {
          tables[table].delete(key);
        } else if (table === "node") {
          tables.node.set(key, entry);
        } else {
          entry.key = key;
          COMPLETE[table](entry);
          entry.natural = natural(entry.label);
          tables[table].set(key, entry);
        }
        changed(table, key);
      }
    }
  }

  function findHolders() {
    holders = new Map();
    for (const lease of tables.leases.values()) {
      for (const [resource, ids] of Object.entries(lease.devices || {})) {
        if (!holders.has(resource)) holders.set(resource, new Map());
        for (const id of ids) holders.get(resource).set(id, lease);
      }
    }
  }

  // --- who has what ---------------------------------------------------------------------------------------------------

  // Whether the daemon tells this user of devices and leases alone.
  const onlyLeases = () => (tables.node.get("plugins") || {}).state === "forbidden";
  // What the daemon has said last of all devices, and when it was asked; whether it may say something else by now.
  let devices = [];
  let devicesAskedAt = 0;
  let devicesOutdated = true;
  // Milliseconds between two questions while something changes, and while nothing does.
  const [ASK_SOON, ASK_LATE] = [500, 10000];

  async function askDevices() {
    const waited = Date.now() - devicesAskedAt;
    if (tab !== "who" || waited < (devicesOutdated ? ASK_SOON : ASK_LATE)) return;
    [devicesAskedAt, devicesOutdated] = [Date.now(), false];
    try {
      const reply = await fetch("/devices", { ...FETCH, signal: AbortSignal.timeout(20000) });
      // What was said last stays, as the rest of the page does.
      if (reply.ok) devices = (await reply.json()).resources;
    } catch {
      devicesOutdated = true; // The banner says who is away.
    }
    draw();
  }

  function whoOf(key, label, lease, pool, state, tone, why, from) {
    const purpose = lease ? lease.for : "";
    return {
      key, label, lease, state, tone, why, from, pool: pool || "", natural: natural(label), user: lease ? lease.whose : "",
      purpose: [purpose, why].filter((it) => it).join(": "), until: lease ? untilOf(lease) : "",
      words: [label, state, purpose, why, pool, lease && lease.whose, lease && lease.key],
    };
  }

  function untilOf(lease) {
    if ((lease.longest || {}).overdue) return "overdue";
    const end = endOf(lease);
    if (end !== null) return clock(end);
    const kind = (lease.owner || {}).kind;
    return kind === "none" ? "released" : kind === "time" ? `${lasting(lease.owner.seconds)} long` : "it ends";
  }

  function whoOfDevice(resource, device, lease) {
    const label = `${resource}=${device.id}`;
    // A device without a lease has a time if it is unhealthy or drained.
    const since = device.healthy ? (device.drained || {}).since : device.since;
    const from = lease ? lease.from : since ? unixOf(since) : null;
    const it = (state, tone, why) => ({ ...whoOf(label, label, lease, device.pool, state, tone, why, from), resource });
    if (!device.healthy) return it("unhealthy", "bad", device.health === "Unhealthy" ? "no reason is given" : device.health);
    if (lease && lease.state !== "held") return it(lease.state, lease.tone, lease.reason || "");
    if (device.drained) return it("drained", "warn", device.drained.reason);
    if (lease) return it("held", "ok", "");
    return device.withheld ? it("withheld", "warn", device.withheld) : it("free", "idle", "");
  }

  // Devices, by resource and id, and then the requests without devices, in the order in which they came.
  function findWho() {
    const rows = [];
    // A resource without a plugin is not always known, and may have leases.
    const listed = new Map([...holders.keys()].map((resource) => [resource, []]));
    for (const it of devices) listed.set(it.resource, it.devices);
    for (const [resource, found] of listed) {
      const held = new Map(holders.get(resource) || []);
      for (const device of found) {
        rows.push(whoOfDevice(resource, device, held.get(device.id)));
        held.delete(device.id);
      }
      for (const [id, lease] of held) {
        rows.push(whoOfDevice(resource, { id, healthy: false, health: "not listed" }, lease));
      }
    }
    rows.sort((a, b) => (a.natural < b.natural ? -1 : 1));
    const waiting = [...tables.leases.values()].filter((it) => !Object.keys(it.devices || {}).length);
    waiting.sort((a, b) => a.from - b.from);
    for (const lease of waiting) {
      const label = wantedOf(lease).join(", ").replaceAll("waits for ", "");
      const pool = lease.request && lease.request.pool;
      const state = lease.state === "queued" ? "waits" : lease.state;
      rows.push(whoOf(`lease ${lease.key}`, label, lease, pool, state, "busy", "", lease.from));
    }
    tables.who = new Map(rows.map((row, rank) => [row.key, { ...row, rank }]));
  }

  // --- texts that are too long for their place ------------------------------------------------------------------------

  // Names and paths differ at their ends, too: those of one directory, those of one driver. So the style cuts a path at
  // the front of its directory first, and then any text in its middle. The whole text stays in the document. The end of
  // a path that is never cut has more than what the sockets of one kind have in common, such as -reg.sock.
  const [TAIL_OF_PATH, TAIL_OF_NAME, SHORT] = [14, 5, 6];
  const LEFTWARD = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

  function parts(text) {
    // The parts of a text that is written from right to left would change their order.
    if (LEFTWARD.test(text)) return ["", text, ""];
    const isPath = text.startsWith("/");
    const end = isPath ? text.lastIndexOf("/") + 1 : 0;
    const base = end > SHORT ? end : 0;
    const letters = [...text.slice(base)];
    let at = Math.max(Math.ceil(letters.length / 2), letters.length - (isPath ? TAIL_OF_PATH : TAIL_OF_NAME));
    while (at < letters.length && /\p{M}/u.test(letters[at])) at += 1;
    return [text.slice(0, base), letters.slice(0, at).join(""), letters.slice(at).join("")];
  }

  function setCut(cell, text) {
    if (cell.textContent === text && cell.children.length) return;
    const [directory, front, tail] = parts(text);
    const outer = element("span", "directory");
    const inner = element("bdi", "");
    inner.textContent = directory;
    outer.append(inner);
    const end = element("span", "tail");
    const innerEnd = element("bdi", "");
    innerEnd.textContent = tail;
    end.append(innerEnd);
    const middle = element("span", "front");
    middle.textContent = front;
    cell.replaceChildren(...[directory && outer, front && middle, tail && end].filter((it) => it));
  }

  // --- a list whose rows are in the document only while they are visible ----------------------------------------------

  // What has no rank is ordered by how bad it is.
  const rankOf = (it) => (it.rank === undefined ? TONES.indexOf(it.tone) : it.rank);

  class Grid {
    constructor(parent, name, columns, open = () => {}) {
      this.name = name;
      this.columns = columns;
      this.open = open;
      this.entries = [];
      this.places = new Map();
      this.rows = [];
      this.chosen = null;
      this.sortedBy = null;
      this.down = false;
      this.outer = element("div", "grid");
      this.outer.id = name;
      this.outer.tabIndex = 0;
      this.outer.setAttribute("role", "grid");
      // Beside the details, or on a narrow page, there is room for the columns that matter most.
      const few = columns.filter((it) => !(it.className || "").includes("hideable"));
      this.outer.style.setProperty("--columns", columns.map((it) => it.width).join(" "));
      this.outer.style.setProperty("--few", few.map((it) => it.narrow || it.width).join(" "));
      const head = element("div", "head");
      head.setAttribute("role", "row");
      head.setAttribute("aria-rowindex", "1");
      this.heads = columns.map((column) => {
        const button = element("button", column.className, column.title);
        button.setAttribute("role", "columnheader");
        button.addEventListener("click", () => this.sortBy(column));
        head.append(button);
        return button;
      });
      this.inner = element("div", "body");
      this.inner.setAttribute("role", "rowgroup");
      this.none = element("div", "empty", "nothing to show");
      this.none.setAttribute("role", "row");
      this.outer.append(head, this.inner, this.none);
      this.outer.addEventListener("scroll", () => this.draw(), { passive: true });
      this.outer.addEventListener("keydown", (event) => this.press(event));
      this.outer.addEventListener("click", (event) => {
        const row = event.target.closest(".row");
        if (row) this.choose(row.entry.key, true);
      });
      parent.append(this.outer);
    }

    sortBy(column) {
      this.down = this.sortedBy === column ? !this.down : false;
      this.sortedBy = column;
      this.columns.forEach((it, index) => {
        const order = it === column ? (this.down ? "descending" : "ascending") : "none";
        this.heads[index].setAttribute("aria-sort", order);
        setText(this.heads[index], it.title + (it === column ? (this.down ? " ↓" : " ↑") : ""));
      });
      this.show(this.entries.slice());
    }

    show(entries) {
      const order = this.sortedBy ? this.sortedBy.order : null;
      const sign = this.down ? -1 : 1;
      entries.sort((a, b) => {
        if (order) {
          const [left, right] = [order(a), order(b)];
          if (left < right) return -sign;
          if (left > right) return sign;
        } else if (rankOf(a) !== rankOf(b)) {
          return rankOf(a) - rankOf(b);
        }
        return a.natural < b.natural ? -1 : a.natural > b.natural ? 1 : a.key < b.key ? -1 : 1;
      });
      this.entries = entries;
      this.places.clear();
      entries.forEach((entry, place) => this.places.set(entry.key, place));
      this.outer.setAttribute("aria-rowcount", String(entries.length + 1));
      this.none.hidden = entries.length > 0;
      this.draw();
    }

    get rowHeight() {
      // In units of the font: whoever prefers larger text gets higher rows.
      const unit = parseFloat(getComputedStyle(document.documentElement).fontSize);
      return unit * parseFloat(getComputedStyle(this.outer).getPropertyValue("--row"));
    }

    draw() {
      const height = this.rowHeight;
      const view = this.outer.clientHeight;
      this.inner.style.height = `${this.entries.length * height}px`;
      const first = Math.max(0, Math.floor(this.outer.scrollTop / height) - 4);
      const last = Math.min(this.entries.length, first + Math.ceil(view / height) + 9);
      while (this.rows.length > last - first) this.rows.pop().remove();
      while (this.rows.length < last - first) this.rows.push(this.makeRow());
      // A row keeps its place in the document while it is scrolled, so that few are written anew.
      for (let place = first; place < last; place += 1) {
        this.fill(this.rows[place % this.rows.length], place, height);
      }
      const place = this.places.get(this.chosen);
      if (place !== undefined && place >= first && place < last) {
        this.outer.setAttribute("aria-activedescendant", `${this.name}-${place}`);
      } else {
        this.outer.removeAttribute("aria-activedescendant");
      }
    }

    makeRow() {
      const row = element("div", "row");
      row.setAttribute("role", "row");
      for (const column of this.columns) {
        const cell = element("span", `cell ${column.className || ""}`);
        cell.setAttribute("role", "gridcell");
        row.append(cell);
      }
      this.inner.append(row);
      return row;
    }

    fill(row, place, height) {
      const entry = this.entries[place];
      row.entry = entry;
      row.id = `${this.name}-${place}`;
      row.setAttribute("aria-rowindex", String(place + 2));
      row.setAttribute("aria-selected", String(entry.key === this.chosen));
      row.style.transform = `translateY(${place * height}px)`;
      this.columns.forEach((column, index) => {
        const cell = row.children[index];
        const text = printable(column.text(entry));
        if (column.cut) setCut(cell, text);
        else setText(cell, text);
        const title = column.about ? printable(column.about(entry)) : text;
        if (cell.title !== title) cell.title = title;
        if (column.tone) {
          const className = `cell ${column.className || ""} mark ${column.tone(entry)}`;
          if (cell.className !== className) cell.className = className;
        }
      });
    }

    choose(key, opens) {
      this.chosen = key;
      const place = this.places.get(key);
      if (place !== undefined) {
        const height = this.rowHeight;
        const head = this.outer.querySelector(".head").offsetHeight;
        const top = place * height;
        const view = this.outer.clientHeight - head;
        if (top < this.outer.scrollTop) this.outer.scrollTop = top;
        else if (top + height > this.outer.scrollTop + view) this.outer.scrollTop = top + height - view;
      }
      this.draw();
      if (opens) this.open(key);
    }

    press(event) {
      // On a title the keys are those of a button.
      if (event.target !== this.outer || event.altKey || event.ctrlKey || event.metaKey || !this.entries.length) return;
      const place = this.places.get(this.chosen);
      const page = Math.max(1, Math.floor(this.outer.clientHeight / this.rowHeight) - 2);
      const from = place === undefined ? -1 : place;
      const steps = {
        ArrowDown: from + 1, ArrowUp: Math.max(0, from - 1), PageDown: Math.max(0, from) + page, PageUp: from - page,
        Home: 0, End: this.entries.length - 1,
      };
      if (event.key in steps) {
        const to = Math.min(this.entries.length - 1, Math.max(0, steps[event.key]));
        this.choose(this.entries[to].key, false);
      } else if ((event.key === "Enter" || event.key === " ") && place !== undefined) {
        this.open(this.chosen);
      } else {
        return;
      }
      event.preventDefault();
    }
  }

  // --- the lists -----------------------------------------------------------------------------------------------------

  const age = (it) => (isTime(it.from) ? duration(now() - it.from) : "");
  const AGE = {
    title: "For", width: "7em", narrow: "5.5em", className: "number faint first", text: age, order: (it) => -(it.from || 0),
    about: (it) => (isTime(it.from) ? `since ${whole(it.from)}` : ""),
  };
  const stateColumn = (table, text) => ({
    title: "State", width: "9.5em", narrow: "8em", className: "first", text, tone: (it) => it.tone, order: text,
    about: (it) => [text(it), meaningOf(table, text(it))].filter((part) => part).join(": "),
  });
  // A socket that has never said its name is known by its path.
  const pathOf = (it) => (it.label === it.key ? it.key : `${it.label}, at ${it.key}`);
  const COLUMNS = {
    plugins: [
      stateColumn("plugins", wordOf),
      {
        title: "Name", width: "minmax(9em, 3fr)", narrow: "minmax(9em, 5fr)", className: "strong first cut", cut: true, text: (it) => it.label,
        order: (it) => it.natural, about: pathOf,
      },
      { title: "Type", width: "9em", className: "hideable", text: (it) => it.kind, order: (it) => it.kind },
      {
        title: "Cause", width: "minmax(8em, 5fr)", narrow: "minmax(6em, 3fr)", className: "wide faint", text: (it) => it.why,
        order: (it) => it.why,
      },
      AGE,
    ],
    resources: [
      stateColumn("resources", (it) => it.state),
      { title: "Resource", width: "minmax(9em, 3fr)", className: "strong first cut", cut: true, text: (it) => it.key, order: (it) => it.key },
      {
        title: "Healthy", width: "7em", className: "number first",
        text: (it) => `${it.allocatable} of ${it.capacity}`, order: (it) => it.allocatable,
      },
      { title: "Leased", width: "6em", className: "number hideable", text: (it) => leasedOf(it.key), order: (it) => leasedOf(it.key) },
      {
        title: "Plugin", width: "minmax(8em, 4fr)", className: "wide faint cut", cut: true, text: (it) => it.why || it.plugin || "",
        order: (it) => it.plugin || "",
      },
      { ...AGE, className: "number faint hideable" },
    ],
    leases: [
      stateColumn("leases", (it) => it.state),
      { title: "Lease", width: "minmax(7em, 2fr)", className: "strong first cut", cut: true, text: (it) => it.key, order: (it) => it.key },
      { title: "User", width: "minmax(6em, 1fr)", text: (it) => it.whose, order: (it) => it.whose },
      { title: "Holder", width: "minmax(8em, 2fr)", className: "hideable", text: ownerOf, order: ownerOf },
      { title: "Devices", width: "minmax(8em, 4fr)", className: "rest faint", text: (it) => it.why, order: (it) => it.why },
      AGE,
    ],
    who: [
      stateColumn("who", (it) => it.state),
      { title: "Device", width: "minmax(9em, 3fr)", className: "strong first cut", cut: true, text: (it) => it.label, order: (it) => it.natural },
      { title: "User", width: "minmax(6em, 1fr)", text: (it) => it.user, order: (it) => it.user },
      { title: "What for", width: "minmax(8em, 3fr)", className: "faint", text: (it) => it.purpose, order: (it) => it.purpose },
      { title: "Until", width: "9.5em", narrow: "5em", text: (it) => it.until, order: (it) => it.until },
      { title: "Pool", width: "5em", className: "faint hideable", text: (it) => it.pool, order: (it) => it.pool },
      AGE,
    ],
  };
  const TITLES = { plugins: "plugins", resources: "devices", leases: "leases", who: "devices" };
  const NAMES = {
    plugins: ["socket", "sockets"], resources: ["resource", "resources"], leases: ["lease", "leases"], who: ["row", "rows"],
  };
  const grids = {};
  let tab = "plugins";
  // The type and the state that were chosen among the counts; null for all.
  let chosenType = null;
  let chosenState = null;

  // The types that have a line among the counts. All others have one together: plugins choose how many there are.
  const MOST_TYPES = 12;
  const OTHERS = "other types";
  let ownLine = new Set();
  const lineOf = (it) => (ownLine.has(it.kind) ? it.kind : OTHERS);
  const isChosen = (it) =>
    (chosenType === null || lineOf(it) === chosenType) && (chosenState === null || it.state === chosenState);

  function filtered() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter((word) => word);
    const problems = byId("problems").checked;
    const found = [];
    for (const it of tables[tab].values()) {
      if (problems && it.tone !== "bad" && it.tone !== "warn") continue;
      if (tab === "plugins" && !isChosen(it)) continue;
      if (words.length && !words.every((word) => hidden(it).includes(word))) continue;
      found.push(it);
    }
    return found;
  }

  // A reader of the screen says how many entries there are once a filter has changed, and not as plugins change.
  let announcing = false;
  function announce() {
    announcing = true;
    draw();
  }

  function drawList() {
    const found = filtered();
    grids[tab].show(found);
    const all = tables[tab].size;
    const [one, more] = NAMES[tab];
    const number = found.length === all ? "" : `${found.length.toLocaleString("en")} of `;
    setText(byId("shown"), number + many(all, one, more));
    if (announcing) setText(byId("found"), byId("shown").textContent);
    announcing = false;
  }

  // Types and states stay among the counts once they were there, so that nothing moves while they come and go.
  let typesSeen = new Set();
  const statesSeen = [...STATES];
  const MOST_STATES = 24;

  function countTypes() {
    const sizes = new Map([...typesSeen].map((kind) => [kind, 0]));
    for (const it of tables.plugins.values()) sizes.set(it.kind, (sizes.get(it.kind) || 0) + 1);
    let kinds = [...sizes.keys()].sort((a, b) => sizes.get(b) - sizes.get(a) || (a < b ? -1 : 1));
    if (kinds.length > MOST_TYPES) kinds = kinds.filter((kind) => sizes.get(kind));
    typesSeen = new Set(kinds.slice(0, 4 * MOST_TYPES));
    ownLine = new Set(kinds.slice(0, MOST_TYPES));
    return kinds.length > MOST_TYPES ? [...ownLine, OTHERS] : [...ownLine];
  }

  function drawCounts() {
    const counts = new Map(countTypes().map((line) => [line, new Map()]));
    let [bad, registered, standby, observed] = [0, 0, 0, 0];
    for (const it of tables.plugins.values()) {
      const row = counts.get(lineOf(it));
      row.set(it.state, (row.get(it.state) || 0) + 1);
      if (!statesSeen.includes(it.state) && statesSeen.length < MOST_STATES) statesSeen.push(it.state);
      if (it.tone === "bad" || it.tone === "warn") bad += 1;
      if (it.state === "registered") registered += 1;
      if (wordOf(it) === STANDBY) standby += 1;
      if (it.state === "observed") observed += 1;
    }
    const all = tables.plugins.size;
    const leases = tables.leases.size ? ` · ${many(tables.leases.size, "lease", "leases")}` : "";
    const stands = standby ? ` (${standby.toLocaleString("en")} of them standby)` : "";
    const health = tables.node.get("health");
    const queued = health && health.queued ? ` · ${health.queued.toLocaleString("en")} queued` : "";
    const settled = `${registered.toLocaleString("en")} registered${stands}`;
    const elsewhere = observed ? ` · ${observed.toLocaleString("en")} observed` : "";
    const problems = many(bad, "problem", "problems");
    setText(byId("sentence"), `${many(all, "socket", "sockets")} · ${settled}${elsewhere}${queued} · ${problems}${leases}`);
    const rows = [...counts.keys()].sort().map((kind) => ({ kind, row: counts.get(kind) }));
    fillCounts(statesSeen, rows);
  }

  // Buttons that are there stay there: one that has the focus must not lose it by a change elsewhere.
  function fillCounts(states, rows) {
    const table = byId("counts");
    const shape = JSON.stringify([states, rows.map((it) => it.kind)]);
    if (table.dataset.shape !== shape) {
      const focused = document.activeElement && document.activeElement.dataset.what;
      table.dataset.shape = shape;
      table.replaceChildren(table.caption);
      const line = table.createTHead().insertRow();
      for (const title of ["type", "all", ...states]) {
        const head = element("th", "", title);
        head.scope = "col";
        head.title = meaningOf("plugins", title);
        line.append(head);
      }
      const body = table.createTBody();
      for (const { kind } of rows) {
        const made = body.insertRow();
        const head = element("th", "", kind);
        head.scope = "row";
        head.title = printable(kind);
        made.append(head);
        for (const state of [null, ...states]) made.insertCell().append(countButton(kind, state));
      }
      for (const button of table.querySelectorAll("button")) if (button.dataset.what === focused) button.focus();
    }
    rows.forEach(({ kind, row }, line) => {
      const sum = [...row.values()].reduce((before, it) => before + it, 0);
      [null, ...states].forEach((state, index) => {
        const number = state === null ? sum : row.get(state) || 0;
        fillCount(table.tBodies[0].rows[line].cells[index + 1].firstChild, number, kind, state);
      });
    });
  }

  function fillCount(button, number, kind, state) {
    const pressed = chosenType === kind && chosenState === state;
    setText(button, number ? number.toLocaleString("en") : "–");
    button.setAttribute("aria-pressed", String(pressed));
    const label = `${number.toLocaleString("en")} ${kind}${state === null ? "" : ", " + state}: show only these`;
    if (button.ariaLabel !== printable(label)) button.ariaLabel = printable(label);
    // By keys, only numbers are reached; one that has become zero keeps the focus until it is left.
    const reached = number > 0 || pressed || document.activeElement === button;
    button.tabIndex = reached ? 0 : -1;
    button.classList.toggle("zero", number === 0);
  }

  function countButton(kind, state) {
    const button = element("button");
    button.dataset.what = JSON.stringify([kind, state]);
    button.addEventListener("click", () => {
      const was = chosenType === kind && chosenState === state;
      [chosenType, chosenState] = was ? [null, null] : [kind, state];
      if (tab !== "plugins") showTab("plugins");
      announce();
    });
    return button;
  }

  // --- the daemon, and whether it is there ---------------------------------------------------------------------------

  // Why what is shown is not what the daemon says now: who is away, since when, and the reason. Null while it is. The
  // time is null if nothing was shown before.
  function absence() {
    const watched = tables.node.get(onlyLeases() ? "leases" : "plugins");
    if (!connected) return { who: "'plugind page'", since: heardAt, reason: refused || broken };
    if (watched === undefined || watched.state === "there") return null;
    return { who: "daemon", since: watched.since, reason: `The daemon does not answer: ${watched.reason}.` };
  }

  function drawNode() {
    const away = absence();
    const stale = away !== null && isTime(away.since);
    stopped = stale ? away.since : null;
    document.body.classList.toggle("stale", stale);
    const daemon = tables.node.get("daemon");
    if (daemon) {
      const version = tables.node.get("version");
      setText(byId("where"), printable(`${version ? version + " " : ""}on ${daemon.host}, asked at ${daemon.path}`));
      document.title = printable(`${stale ? "away: " : ""}plugind on ${daemon.host}`);
    }
    drawHealth(stale, away);
    drawBanner(away);
    const live = away === null && tables.node.has("plugins");
    byId("connection").className = live ? "live" : "";
    setText(byId("connection"), live ? "live" : away !== null && away.reason ? "not live" : "connecting");
  }

  function drawHealth(stale, away) {
    const health = tables.node.get("health");
    const mark = byId("health");
    mark.hidden = stale ? false : away !== null || !health;
    if (stale) {
      mark.className = "mark bad";
      const seen = Object.keys(COLUMNS).some((name) => tables[name].size) ? ", what you see is from then" : "";
      setText(mark, `${away.who} away since ${clock(away.since)}${seen}`);
      mark.title = whole(away.since);
    } else if (health) {
      mark.className = `mark ${{ ok: "ok", degraded: "warn", failed: "bad" }[health.status] || "busy"}`;
      setText(mark, printable(health.status));
      mark.title = printable(Array.isArray(health.reasons) ? health.reasons.join("\n") : "");
    }
  }

  // How many reasons are said before the number of the others.
  const MOST_REASONS = 3;

  function drawBanner(away) {
    const health = tables.node.get("health");
    let [text, tone] = ["", "bad"];
    if (away !== null) text = away.reason || "";
    else if (health && health.status !== "ok") {
      const reasons = health.reasons || [];
      const others = reasons.length > MOST_REASONS ? `; and ${reasons.length - MOST_REASONS} more` : "";
      const words = health.status === "failed" ? "The daemon has failed" : `The daemon is ${health.status}`;
      text = `${words}: ${reasons.slice(0, MOST_REASONS).join("; ")}${others}`;
      tone = health.status === "failed" ? "bad" : "warn";
    } else {
      // The devices and the leases are watched by themselves.
      const other = tables.node.get(tab === "who" ? "leases" : tab);
      if (other && other.state === "away") {
        text = `No news of ${TITLES[tab]} since ${clock(other.since)}, what you see of them is from then: ${other.reason}`;
        tone = "warn";
      }
    }
    const banner = byId("banner");
    banner.hidden = text === "";
    banner.className = tone;
    setText(banner, printable(text));
    const missing = tables.node.get(tab === "who" ? "resources" : tab);
    if (missing && missing.state === "missing") setText(grids[tab].none, printable(missing.reason));
    else if (tables[tab].size) setText(grids[tab].none, `none of the ${TITLES[tab]} is so: empty the filter to see all`);
    else setText(grids[tab].none, tables.node.has("plugins") ? `no ${TITLES[tab]}` : "");
  }

  // A node whose devices need no plugins begins with who has them.
  let beginning = true;
  function begin() {
    if (!["plugins", "resources"].every((table) => (tables.node.get(table) || {}).state === "there")) return;
    beginning = false;
    if (tab === "plugins" && !tables.plugins.size && tables.resources.size) showTab("who");
  }

  let drawing = false;
  function draw() {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      findHolders();
      // There are no plugins for who may only lease.
      byId("summary").hidden = onlyLeases();
      byId("tab-plugins").hidden = onlyLeases();
      if (onlyLeases() && tab === "plugins") showTab("who");
      if (beginning) begin();
      if (tab === "who") {
        askDevices();
        findWho();
      }
      drawNode();
      drawCounts();
      drawList();
      drawChip();
      drawDetails();
    });
  }

  function drawChip() {
    const chip = byId("chosen");
    chip.hidden = tab !== "plugins" || (chosenType === null && chosenState === null);
    setText(chip, printable(`${[chosenType, chosenState].filter((it) => it !== null).join(", ")}  ✕`));
    chip.title = "show all again";
  }

  function showTab(name) {
    tab = name;
    for (const it of Object.keys(COLUMNS)) {
      const button = byId(`tab-${it}`);
      button.setAttribute("aria-selected", String(it === name));
      button.tabIndex = it === name ? 0 : -1;
      grids[it].outer.hidden = it !== name;
    }
    byId("pane").setAttribute("aria-labelledby", `tab-${name}`);
    closeDetails();
    draw();
  }

  // --- the details of one entry --------------------------------------------------------------------------------------

  // What is looked at: a table and a key; and what the daemon has said of it.
  let looked = null;
  let asking = false;
  let outdated = false;
  let deviceGrid = null;

  function changed(table, key) {
    devicesOutdated ||= table === "resources" || table === "leases";
    if (looked === null) return;
    if ((table === looked.table && key === looked.key) || (table === "leases" && looked.table === "resources")) {
      outdated = true;
    }
  }

  function open(table, key) {
    looked = { table, key, answer: null, failure: null, drawn: null };
    deviceGrid = null;
    outdated = true;
    byId("details").hidden = false;
    byId("details").replaceChildren();
    draw();
    byId("details").focus({ preventScroll: true });
  }

  function closeDetails() {
    if (looked === null) return;
    const had = byId("details").contains(document.activeElement);
    looked = null;
    deviceGrid = null;
    running = [];
    byId("details").hidden = true;
    byId("details").replaceChildren();
    if (had) grids[tab].outer.focus();
    grids[tab].draw();
  }

  const ABOUT = {
    plugins: (key) => `/plugin?socket=${encodeURIComponent(key)}`,
    resources: (key) => `/devices?resource=${encodeURIComponent(key)}`,
  };

  async function askAbout() {
    const about = looked;
    if (asking || !outdated || about === null) return;
    outdated = false;
    if (!(about.table in ABOUT)) return;
    asking = true;
    try {
      const reply = await fetch(ABOUT[about.table](about.key), { ...FETCH, signal: AbortSignal.timeout(20000) });
      const answer = await reply.json();
      // What was said last stays, as the rest of the page does.
      if (reply.ok) about.answer = answer;
      about.failure = reply.ok ? null : answer.error;
      about.drawn = null;
    } catch (error) {
      about.failure = `no answer: ${error.message}`;
      about.drawn = null;
    }
    // Changes of one entry may be many: it is asked about twice a second at most.
    setTimeout(() => {
      asking = false;
      if (outdated) askAbout();
    }, 500);
    draw();
  }

  function drawDetails() {
    if (looked === null) return;
    askAbout();
    const entry = tables[looked.table].get(looked.key);
    const state = JSON.stringify([entry || null, looked.table === "resources" ? [...(holders.get(looked.key) || new Map()).keys()] : 0, stopped]);
    if (looked.drawn === state) return;
    looked.drawn = state;
    const details = byId("details");
    const top = details.scrollTop;
    // What is put into the document anew has lost the focus, and is scrolled to its top.
    const inner = deviceGrid ? deviceGrid.outer.scrollTop : 0;
    const focusGrid = deviceGrid !== null && document.activeElement === deviceGrid.outer;
    const focusClose = document.activeElement && document.activeElement.id === "close";
    running = [];
    const made = DETAILS[looked.table](looked.key, entry, looked.answer);
    if (looked.failure) made.push(element("p", "mark bad", looked.failure));
    const close = element("button", "", "✕");
    close.id = "close";
    close.title = "close (Escape)";
    close.addEventListener("click", closeDetails);
    details.replaceChildren(close, ...made);
    if (deviceGrid) {
      deviceGrid.outer.scrollTop = inner;
      deviceGrid.draw();
      if (focusGrid) deviceGrid.outer.focus({ preventScroll: true });
    }
    if (focusClose) close.focus({ preventScroll: true });
    details.scrollTop = top;
  }

  function facts(pairs) {
    const list = element("dl", "facts");
    for (const [name, text] of pairs) {
      if (text === null || text === undefined || text === "" || (Array.isArray(text) && !text.length)) continue;
      const said = element("dd", "");
      said.append(text instanceof Node ? text : printable(Array.isArray(text) ? text.join(", ") : text));
      list.append(element("dt", "", name), said);
    }
    return list;
  }

  // How long each step took of the try that is under way or has led to the state.
  const stepsOf = (it) =>
    Object.entries(it.steps || {}).map(([step, seconds]) => `${step} ${(seconds * 1000).toFixed(1)} ms`).join(", ");

  const countdown = (seconds) => (seconds < 120 ? `${Math.ceil(seconds)} s` : duration(seconds));

  // A time, and how long ago that is; or in how long it will be.
  function moment(unix) {
    if (!isTime(unix)) return unix === null || unix === undefined ? null : clock(unix);
    const made = element("span", "");
    const distance = () => (unix > now() ? ` (in ${countdown(unix - now())})` : ` (${duration(now() - unix)} ago)`);
    made.append(timeElement(unix), runningText("span", "", distance));
    return made;
  }
  const momentOf = (text) => moment(unixOf(text));

  // The state, and what the word means.
  function heading(table, tone, state, step = "") {
    const made = [element("p", `mark ${tone}`, state)];
    const meaning = Object.hasOwn(STEPS, step) ? STEPS[step] : meaningOf(table, state);
    if (meaning) made.push(element("p", "meaning", meaning));
    return made;
  }

  function timeline(history) {
    const made = [];
    const times = history.map((it) => unixOf(it.at));
    const tones = history.map((it) => toneOfPlugin({ ...it, warnings: [] }));
    const lasted = times.map((time, index) => Math.max(0, (index + 1 < times.length ? times[index + 1] : now()) - time));
    const strip = element("div", "strip");
    strip.setAttribute("aria-hidden", "true");
    lasted.forEach((seconds, index) => {
      const part = element("span", tones[index]);
      // A state of milliseconds is visible beside one of days.
      part.style.flexGrow = String(0.3 + Math.log1p(seconds * 10));
      part.title = `${printable(stateOf(history[index]))}, ${precise(seconds)}`;
      strip.append(part);
    });
    const ends = element("p", "ends");
    ends.append(timeElement(times[0], ""), stopped === null ? element("span", "", "now") : timeElement(stopped, ""));
    const list = element("ol", "timeline");
    for (let index = history.length - 1; index >= 0; index -= 1) {
      const it = history[index];
      const item = element("li");
      const glyph = { ok: "✓", bad: "✕", warn: "!", busy: "…", idle: "○" }[tones[index]];
      const dot = element("span", `dot ${tones[index]}`, glyph);
      dot.setAttribute("aria-hidden", "true");
      const tries = it.attempt > 1 ? `, try ${it.attempt}` : "";
      const state = element("strong", "", stateOf(it));
      const when = element("span", "when", " ");
      const last = index === history.length - 1;
      const lasting = () => (last ? `, for ${duration(now() - times[index])} now` : `, for ${precise(lasted[index])}`);
      when.append(timeElement(times[index]), runningText("span", "", lasting), tries);
      item.append(dot, state, when);
      const why = it.reason || it.cause;
      if (why) item.append(element("span", "why", why));
      list.append(item);
    }
    made.push(element("h3", "", "History"), strip, ends, list);
    return made;
  }

  const DETAILS = {
    plugins(key, entry, answer) {
      const it = (answer && (answer.find((one) => one.socket === key) || answer[0])) || entry || { socket: key };
      const shownAs = entry || { ...it, key };
      if (!entry) COMPLETE.plugins(shownAs);
      const made = [
        element("h2", "", shownAs.label),
        ...heading("plugins", entry ? shownAs.tone : "idle", entry ? wordOf(shownAs) : "gone", shownAs.step || ""),
        facts([
          ["cause", shownAs.why], ["reason", it.reason === shownAs.why ? null : it.reason], ["next try", momentOf(it.next_try_at)],
          ["attempt", it.attempt], ["type", it.type], ["socket", key], ["endpoint", it.endpoint],
          ["versions", it.versions], ["root", it.root], ["since", momentOf(it.since)],
          ["registered in", typeof it.registered_in === "number" ? precise(it.registered_in) : null],
          ["steps", stepsOf(it)],
          ["health", it.health && `${it.health}${it.health_reason ? ": " + it.health_reason : ""}`],
          ["process", typeof it.pid === "number" ? `${it.pid}, ${userOf(it.uid)}` : null],
          ["source", it.source], ["generation", it.generation], ["warnings", it.warnings],
        ]),
      ];
      if (it.facts && Object.keys(it.facts).length) made.push(element("h3", "", "Facts"), facts(Object.entries(it.facts)));
      if (it.device_plugin) {
        const listed = it.device_plugin;
        made.push(element("h3", "", "Devices"), facts([
          ["resource", listed.resource], ["healthy", `${listed.healthy} of ${listed.devices}`],
          ["lists", listed.lists], ["last list", momentOf(listed.last_list)], ["lost since", momentOf(listed.lost_since)],
          ["why", listed.reason], ["warning", listed.warning],
        ]));
      }
      if (it.history && it.history.length) made.push(...timeline(it.history));
      else if (!answer && !looked.failure) made.push(element("p", "", "The history is being asked for."));
      return made;
    },
    resources(key, entry, answer) {
      const resource = answer && answer.resources && answer.resources[0];
      const it = resource || entry || {};
      const made = [
        element("h2", "", key),
        ...heading("resources", entry ? entry.tone : "idle", entry ? entry.state : "gone"),
        facts([
          ["why", it.reason], ["healthy", `${it.allocatable} of ${it.capacity}`], ["leased", String(leasedOf(key))],
          ["plugin", it.plugin], ["since", momentOf(it.since)],
          ["out of service", resource ? resource.devices.filter((it) => it.drained).map((it) => `${it.id} is ${drainOf(it.drained)}`) : []],
          ["standby", (Array.isArray(it.plugins) ? it.plugins : []).filter((one) => !one.active).map((one) => one.socket)],
        ]),
      ];
      if (resource) {
        made.push(element("h3", "", "Devices and who has them"));
        if (deviceGrid === null) deviceGrid = new Grid(element("div"), "device", DEVICE_COLUMNS);
        made.push(deviceGrid.outer);
        const held = holders.get(key) || new Map();
        deviceGrid.show(resource.devices.map((device) => ({
          ...device, key: device.id, label: device.id, natural: natural(device.id), tone: device.healthy ? "ok" : "bad", lease: held.get(device.id),
        })));
      }
      return made;
    },
    leases(key, entry) {
      if (!entry) return [element("h2", "", key), ...heading("leases", "idle", "gone")];
      const ends = endOf(entry);
      const made = [
        element("h2", "", key),
        ...heading("leases", entry.tone, entry.state),
        facts([
          ["holder", holderOf(entry)], ["why", entry.reason], ["asked for", moment(entry.from)],
          ["ends", moment(ends)], ["waits for", entry.state === "queued" ? wantedOf(entry) : null],
          ["warnings", entry.warnings],
        ]),
      ];
      const devices = Object.entries(entry.devices || {});
      if (devices.length) made.push(element("h3", "", "Devices"), facts(devices));
      return made;
    },
  };

  const drainOf = (it) => {
    const until = it.until ? `, until ${clock(unixOf(it.until))}` : "";
    return `drained${it.reason ? `: ${it.reason}` : ""} (by ${userOf(it.by)}, since ${clock(unixOf(it.since))}${until})`;
  };
  const DEVICE_COLUMNS = [
    { title: "Device", width: "minmax(4.5em, 2fr)", className: "strong first cut", cut: true, text: (it) => it.id, order: (it) => it.natural },
    { title: "Health", width: "6.8em", className: "first", text: (it) => it.health, tone: (it) => it.tone, order: (it) => it.health },
    { title: "NUMA", width: "3.7em", className: "number faint hideable", text: (it) => (it.numa || []).join(" "), order: (it) => (it.numa || [])[0] || 0 },
    {
      title: "Holder", width: "minmax(8em, 7fr)", className: "wide", order: (it) => (it.lease ? it.lease.key : ""),
      text: (it) => (it.lease ? `${it.lease.key}: ${holderOf(it.lease)}` : it.drained ? drainOf(it.drained) : it.withheld || "free"),
    },
  ];

  // --- the connection ------------------------------------------------------------------------------------------------

  // The token is the part of the address after #, which no server gets. It leaves the address, so that it is neither
  // copied nor kept in the history by chance, and stays for this tab, so that the page can be loaded again.
  const KEPT = "plugind-token";
  if (location.hash.length > 1) {
    sessionStorage.setItem(KEPT, location.hash.slice(1));
    history.replaceState(null, "", location.pathname);
  }
  addEventListener("hashchange", () => location.reload());
  const token = sessionStorage.getItem(KEPT) || "";
  // A page without a token comes through a proxy, which may ask for the certificate of the browser.
  const FETCH = {
    headers: { Authorization: `Bearer ${token}` }, credentials: token ? "omit" : "same-origin",
    cache: "no-store", referrerPolicy: "no-referrer", redirect: "error",
  };
  // The server sends something every 2.5 seconds.
  const SILENCE = 10000;
  // A page that nobody sees leaves its place to others after a minute, and takes it again when it is seen.
  const UNSEEN = 60000;
  const GONE = "'plugind page' does not answer any more: if it has ended, start it again and open the address that it prints.";
  const SILENT = "'plugind page' is silent. A browser has few connections for one address: close other pages of this one.";
  const REFUSED = "This address has no token, or an old one. Open the one that 'plugind page' has printed.";
  let connected = false;
  // Why there is no connection, if one was tried; and why none is tried any more.
  let broken = null;
  let refused = null;
  // When the server has sent something last, by the clock of the node.
  let heardAt = null;
  let leave = () => {};

  const seen = () =>
    new Promise((done) => {
      const look = () => {
        if (document.hidden) return;
        document.removeEventListener("visibilitychange", look);
        done();
      };
      document.addEventListener("visibilitychange", look);
      look();
    });

  async function follow() {
    while (refused === null) {
      await seen();
      const stop = new AbortController();
      leave = () => stop.abort(null);
      let why = GONE;
      try {
        await readEvents(stop);
      } catch (error) {
        // What fetch throws of its own says no more than that there is nobody.
        why = error === null ? null : error instanceof TypeError || !error.message ? GONE : error.message;
      }
      stop.abort();
      connected = false;
      broken = why;
      if (why !== null) {
        draw();
        await new Promise((done) => setTimeout(done, 1000));
      }
    }
  }

  async function readEvents(stop) {
    const within = async (promise) => {
      const silence = setTimeout(() => stop.abort(new Error(SILENT)), SILENCE);
      try {
        return await promise;
      } finally {
        clearTimeout(silence);
      }
    };
    const reply = await within(fetch("/events", { ...FETCH, signal: stop.signal }));
    if (reply.status === 401) refused = REFUSED;
    if (!reply.ok) throw new Error(`'plugind page' refuses: ${(await within(reply.json())).error}`);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await within(reader.read());
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const found = /^event: (\w+)\ndata: (.*)$/.exec(event);
        if (found) take(found[1], JSON.parse(found[2]));
      }
      connected = true;
      heardAt = Date.now() / 1000 + ahead;
    }
  }

  let unseen = null;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(unseen);
    if (document.hidden) unseen = setTimeout(() => leave(), UNSEEN);
  });

  // --- the start -----------------------------------------------------------------------------------------------------

  for (const name of Object.keys(COLUMNS)) {
    grids[name] = new Grid(byId("pane"), name, COLUMNS[name], (key) => {
      const of = name === "who" ? tables.who.get(key) : null;
      if (of === null) open(name, key);
      else if (of.lease) open("leases", of.lease.key);
      else open("resources", of.resource);
    });
    grids[name].outer.setAttribute("aria-label", byId(`tab-${name}`).textContent);
    grids[name].outer.hidden = name !== tab;
    byId(`tab-${name}`).addEventListener("click", () => showTab(name));
  }
  byId("tabs").addEventListener("keydown", (event) => {
    const names = Object.keys(COLUMNS).filter((it) => !byId(`tab-${it}`).hidden);
    const at = names.indexOf(tab);
    const to = { ArrowRight: at + 1, ArrowLeft: at + names.length - 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    showTab(names[to % names.length]);
    byId(`tab-${tab}`).focus();
    event.preventDefault();
  });
  byId("filter").addEventListener("input", () => {
    grids[tab].outer.scrollTop = 0;
    announce();
  });
  byId("problems").addEventListener("change", announce);
  byId("chosen").addEventListener("click", () => {
    [chosenType, chosenState] = [null, null];
    announce();
    byId("filter").focus();
  });
  addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const typing = event.target === byId("filter");
    if (event.key === "/" && !typing) {
      byId("filter").focus();
      event.preventDefault();
    } else if (event.key === "Escape" && looked !== null) {
      closeDetails();
    } else if (event.key === "Escape" && event.target === byId("filter")) {
      byId("filter").value = "";
      announce();
    } else if (event.key === "ArrowDown" && event.target === byId("filter")) {
      grids[tab].outer.focus();
      event.preventDefault();
    }
  });
  addEventListener("resize", draw);
  // Ages grow while nothing changes.
  setInterval(() => {
    if (document.hidden) return;
    askDevices();
    grids[tab].draw();
    for (const { made, text } of running) setText(made, text());
  }, 1000);
  follow();
})();
