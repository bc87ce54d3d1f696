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

  function clock(unix) {
    const when = new Date(unix * 1000);
    const two = (number) => String(number).padStart(2, "0");
    const time = [when.getHours(), when.getMinutes(), when.getSeconds()].map(two).join(":");
    if (when.toDateString() === new Date().toDateString()) return time;
    return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${time}`;
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

  // --- what is known -------------------------------------------------------------------------------------------------

  const tables = { plugins: new Map(), resources: new Map(), leases: new Map(), node: new Map() };
  // Which lease has a device: by resource, and by the id of the device.
  let holders = new Map();
  // Seconds by which the clock of the node is ahead of this one.
  let ahead = 0;
  const now = () => Date.now() / 1000 + ahead;

  const STATES = [
    "registered", "observed", "notifying", "registering", "validating", "asking-info", "dialing", "waiting", "stale",
    "parked", "leaving",
  ];
  const TONES = ["bad", "warn", "busy", "idle", "ok"];

  // Observed plugins are those of another consumer, which has registered them.
  const isSettled = (it) => it.state === "registered" || it.state === "observed";

  function toneOfPlugin(it) {
    if (isSettled(it)) {
      if (it.serving === false || it.health === "unhealthy" || it.health === "disconnected") return "bad";
      if (it.active === false) return "idle";
      return it.warnings && it.warnings.length ? "warn" : "ok";
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
      if (it.active === false) return it.reason || "standby: another instance of the name is used";
      return (it.warnings && it.warnings[0]) || "";
    }
    return it.cause || it.reason || "";
  }

  function ownerOf(lease) {
    const owner = lease.owner || {};
    switch (owner.kind) {
      case "process": return `process ${owner.pid}`;
      case "container": return owner.init ? `container, process ${owner.init.pid}` : "container";
      case "time": return "time";
      case "connection": return "connection";
      default: return "nobody";
    }
  }

  const endOf = (lease) => {
    const left = lease.owner && lease.owner.ends_in;
    return typeof left === "number" ? (unixOf(lease.time) || now()) + left : null;
  };
  const holderOf = (lease) => `${lease.key}: ${ownerOf(lease)} of user ${lease.uid}`;

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
      it.words = [it.label, it.key, it.kind, it.state, it.why, it.reason, it.health];
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
      it.holder = `${ownerOf(it)} of user ${it.uid}`;
      it.words = [it.key, it.state, it.holder, it.why, ...devices];
    },
    node() {},
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
        } else {
          entry.key = key;
          COMPLETE[table](entry);
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

  // --- a list whose rows are in the document only while they are visible ----------------------------------------------

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
      this.none = element("p", "empty", "nothing to show");
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
        } else if (a.tone !== b.tone) {
          return TONES.indexOf(a.tone) - TONES.indexOf(b.tone);
        }
        return a.label < b.label ? -1 : a.label > b.label ? 1 : a.key < b.key ? -1 : 1;
      });
      this.entries = entries;
      this.places.clear();
      entries.forEach((entry, place) => this.places.set(entry.key, place));
      this.outer.setAttribute("aria-rowcount", String(entries.length + 1));
      this.none.hidden = entries.length > 0;
      this.draw();
    }

    get rowHeight() {
      return parseFloat(getComputedStyle(this.outer).getPropertyValue("--row")) || 36;
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
        setText(cell, text);
        if (cell.title !== text) cell.title = text;
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

  const age = (it) => (it.from === null || it.from === undefined ? "" : duration(now() - it.from));
  const AGE = { title: "For", width: "7em", narrow: "5.5em", className: "number faint first", text: age, order: (it) => -(it.from || 0) };
  const stateColumn = (text) => ({
    title: "State", width: "9.5em", narrow: "8em", className: "first", text, tone: (it) => it.tone, order: text,
  });
  const COLUMNS = {
    plugins: [
      stateColumn((it) => (it.state === "registered" && it.active === false ? "standby" : it.state)),
      { title: "Name", width: "minmax(8em, 3fr)", className: "strong first", text: (it) => it.label, order: (it) => it.label },
      { title: "Type", width: "9em", className: "hideable", text: (it) => it.kind, order: (it) => it.kind },
      { title: "Cause", width: "minmax(8em, 5fr)", className: "wide faint", text: (it) => it.why, order: (it) => it.why },
      AGE,
    ],
    resources: [
      stateColumn((it) => it.state),
      { title: "Resource", width: "minmax(8em, 3fr)", className: "strong first", text: (it) => it.key, order: (it) => it.key },
      {
        title: "Healthy", width: "7em", className: "number first",
        text: (it) => `${it.allocatable} of ${it.capacity}`, order: (it) => it.allocatable,
      },
      { title: "Leased", width: "6em", className: "number hideable", text: (it) => leasedOf(it.key), order: (it) => leasedOf(it.key) },
      { title: "Plugin", width: "minmax(8em, 4fr)", className: "wide faint", text: (it) => it.why || it.plugin || "", order: (it) => it.plugin || "" },
      { ...AGE, className: "number faint hideable" },
    ],
    leases: [
      stateColumn((it) => it.state),
      { title: "Lease", width: "minmax(7em, 2fr)", className: "strong first", text: (it) => it.key, order: (it) => it.key },
      { title: "Holder", width: "minmax(9em, 2fr)", className: "hideable", text: (it) => it.holder, order: (it) => it.holder },
      { title: "Devices", width: "minmax(8em, 4fr)", className: "wide faint", text: (it) => it.why, order: (it) => it.why },
      AGE,
    ],
  };
  const NAMES = { plugins: ["socket", "sockets"], resources: ["resource", "resources"], leases: ["lease", "leases"] };
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

  function drawList() {
    const found = filtered();
    grids[tab].show(found);
    const all = tables[tab].size;
    const [one, more] = NAMES[tab];
    const number = found.length === all ? "" : `${found.length.toLocaleString("en")} of `;
    setText(byId("shown"), number + many(all, one, more));
  }

  function drawCounts() {
    const sizes = new Map();
    for (const it of tables.plugins.values()) sizes.set(it.kind, (sizes.get(it.kind) || 0) + 1);
    const kinds = [...sizes.keys()].sort((a, b) => sizes.get(b) - sizes.get(a) || (a < b ? -1 : 1));
    ownLine = new Set(kinds.slice(0, MOST_TYPES));
    const counts = new Map();
    const present = new Set();
    let bad = 0;
    let registered = 0;
    let observed = 0;
    for (const it of tables.plugins.values()) {
      const line = lineOf(it);
      if (!counts.has(line)) counts.set(line, new Map());
      const row = counts.get(line);
      row.set(it.state, (row.get(it.state) || 0) + 1);
      present.add(it.state);
      if (it.tone === "bad" || it.tone === "warn") bad += 1;
      if (it.state === "registered") registered += 1;
      if (it.state === "observed") observed += 1;
    }
    const all = tables.plugins.size;
    const leases = tables.leases.size ? ` · ${many(tables.leases.size, "lease", "leases")}` : "";
    const settled = `${registered.toLocaleString("en")} registered`;
    const elsewhere = observed ? ` · ${observed.toLocaleString("en")} observed` : "";
    const problems = many(bad, "problem", "problems");
    setText(byId("sentence"), `${many(all, "socket", "sockets")} · ${settled}${elsewhere} · ${problems}${leases}`);
    const states = STATES.filter((state) => present.has(state));
    for (const state of [...present].sort()) if (!states.includes(state)) states.push(state);
    const rows = [...counts.keys()].sort().map((kind) => ({ kind, row: counts.get(kind) }));
    fillCounts(states, rows);
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
      for (const title of ["type", ...states, "all"]) {
        const head = element("th", "", title);
        head.scope = "col";
        line.append(head);
      }
      const body = table.createTBody();
      for (const { kind } of rows) {
        const made = body.insertRow();
        const head = element("th", "", kind);
        head.scope = "row";
        made.append(head);
        for (const state of [...states, null]) made.insertCell().append(countButton(kind, state));
      }
      for (const button of table.querySelectorAll("button")) if (button.dataset.what === focused) button.focus();
    }
    rows.forEach(({ kind, row }, line) => {
      const numbers = states.map((state) => row.get(state) || 0);
      numbers.push(numbers.reduce((sum, it) => sum + it, 0));
      numbers.forEach((number, index) => {
        const button = table.tBodies[0].rows[line].cells[index + 1].firstChild;
        setText(button, number ? number.toLocaleString("en") : "–");
        const state = index < states.length ? states[index] : null;
        button.setAttribute("aria-pressed", String(chosenType === kind && chosenState === state));
      });
    });
  }

  function countButton(kind, state) {
    const button = element("button");
    button.dataset.what = JSON.stringify([kind, state]);
    button.setAttribute("aria-label", printable(`only ${kind}${state === null ? "" : ", " + state}`));
    button.addEventListener("click", () => {
      const was = chosenType === kind && chosenState === state;
      [chosenType, chosenState] = was ? [null, null] : [kind, state];
      if (tab === "plugins") draw();
      else showTab("plugins");
    });
    return button;
  }

  // Whether what is shown is what the daemon says now.
  function isLive() {
    const watched = tables.node.get("plugins");
    return connected && watched !== undefined && watched.state === "there";
  }

  function drawNode() {
    const daemon = tables.node.get("daemon");
    if (daemon) {
      setText(byId("where"), printable(`on ${daemon.host}, asked at ${daemon.path}`));
      document.title = printable(`plugind on ${daemon.host}`);
    }
    const health = tables.node.get("health");
    byId("health").hidden = !health || !isLive();
    if (health) {
      const tone = { ok: "ok", degraded: "warn", failed: "bad" }[health.status] || "busy";
      byId("health").className = `mark ${tone}`;
      setText(byId("health"), printable(health.status));
      byId("health").title = printable((health.reasons || []).join("\n"));
    }
    drawBanner(health);
  }

  function drawBanner(health) {
    const watched = tables.node.get("plugins");
    let text = "";
    if (!connected && wasConnected) text = "'plugind page' does not answer any more: this is what it said last.";
    else if (watched && watched.state !== "there") {
      text = `The daemon is away since ${clock(watched.since)} (${watched.reason}). This is what it said last.`;
    } else if (health && health.status === "failed") text = `The daemon has failed: ${(health.reasons || []).join("; ")}`;
    const banner = byId("banner");
    banner.hidden = text === "";
    setText(banner, printable(text));
    const without = connected ? "the daemon is away" : wasConnected ? "not connected" : "connecting";
    byId("connection").className = isLive() ? "live" : "";
    setText(byId("connection"), isLive() ? "live" : without);
    const missing = tables.node.get(tab);
    if (missing && missing.state === "missing") setText(grids[tab].none, printable(missing.reason));
    else setText(grids[tab].none, "nothing to show");
  }

  let drawing = false;
  function draw() {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      findHolders();
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
    const state = JSON.stringify([entry || null, looked.table === "resources" ? [...(holders.get(looked.key) || new Map()).keys()] : 0]);
    if (looked.drawn === state) return;
    looked.drawn = state;
    const details = byId("details");
    const top = details.scrollTop;
    // What is put into the document anew has lost the focus, and is scrolled to its top.
    const inner = deviceGrid ? deviceGrid.outer.scrollTop : 0;
    const focusGrid = deviceGrid !== null && document.activeElement === deviceGrid.outer;
    const focusClose = document.activeElement && document.activeElement.id === "close";
    const parts = DETAILS[looked.table](looked.key, entry, looked.answer);
    if (looked.failure) parts.push(element("p", "mark bad", looked.failure));
    const close = element("button", "", "✕");
    close.id = "close";
    close.title = "close (Escape)";
    close.addEventListener("click", closeDetails);
    details.replaceChildren(close, ...parts);
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
      if (text === null || text === undefined || text.length === 0) continue;
      list.append(element("dt", "", name), element("dd", "", Array.isArray(text) ? text.join(", ") : text));
    }
    return list;
  }

  const moment = (text) => (text ? `${clock(unixOf(text))} (${duration(now() - unixOf(text))} ago)` : null);
  const heading = (tone, text) => element("p", `mark ${tone}`, text);

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
      part.title = `${printable(history[index].state)}, ${precise(seconds)}`;
      strip.append(part);
    });
    const ends = element("p", "ends");
    ends.append(element("span", "", clock(times[0])), element("span", "", "now"));
    const list = element("ol", "timeline");
    for (let index = history.length - 1; index >= 0; index -= 1) {
      const it = history[index];
      const item = element("li");
      const glyph = { ok: "✓", bad: "✕", warn: "!", busy: "…", idle: "○" }[tones[index]];
      const dot = element("span", `dot ${tones[index]}`, glyph);
      dot.setAttribute("aria-hidden", "true");
      const tries = it.attempt > 1 ? `, try ${it.attempt}` : "";
      const state = element("strong", "", it.state);
      const last = index === history.length - 1 ? "since then" : `for ${precise(lasted[index])}`;
      item.append(dot, state, element("span", "when", `  ${clock(times[index])}, ${last}${tries}`));
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
        heading(entry ? shownAs.tone : "idle", entry ? shownAs.state : "gone"),
        facts([
          ["cause", shownAs.why], ["reason", it.reason], ["next try", it.next_try_at && clock(unixOf(it.next_try_at))],
          ["attempt", it.attempt], ["type", it.type], ["socket", key], ["endpoint", it.endpoint],
          ["versions", it.versions], ["root", it.root], ["since", moment(it.since)],
          ["registered in", typeof it.registered_in === "number" ? precise(it.registered_in) : null],
          ["health", it.health && `${it.health}${it.health_reason ? ": " + it.health_reason : ""}`],
          ["process", typeof it.pid === "number" ? `${it.pid} of user ${it.uid}` : null],
          ["source", it.source], ["generation", it.generation], ["warnings", it.warnings],
        ]),
      ];
      if (it.facts && Object.keys(it.facts).length) made.push(element("h3", "", "Facts"), facts(Object.entries(it.facts)));
      if (it.device_plugin) {
        const listed = it.device_plugin;
        made.push(element("h3", "", "Devices"), facts([
          ["resource", listed.resource], ["healthy", `${listed.healthy} of ${listed.devices}`],
          ["lists", listed.lists], ["last list", moment(listed.last_list)], ["lost since", moment(listed.lost_since)],
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
        heading(entry ? entry.tone : "idle", entry ? entry.state : "gone"),
        facts([
          ["why", it.reason], ["healthy", `${it.allocatable} of ${it.capacity}`], ["leased", String(leasedOf(key))],
          ["plugin", it.plugin], ["since", moment(it.since)],
          ["standby", (it.plugins || []).filter((one) => !one.active).map((one) => one.socket)],
        ]),
      ];
      if (resource) {
        made.push(element("h3", "", "Devices and who has them"));
        if (deviceGrid === null) deviceGrid = new Grid(element("div"), "device", DEVICE_COLUMNS);
        made.push(deviceGrid.outer);
        const held = holders.get(key) || new Map();
        deviceGrid.show(resource.devices.map((device) => ({
          ...device, key: device.id, label: device.id, tone: device.healthy ? "ok" : "bad", lease: held.get(device.id),
        })));
      }
      return made;
    },
    leases(key, entry) {
      if (!entry) return [element("h2", "", key), heading("idle", "gone")];
      const ends = endOf(entry);
      const made = [
        element("h2", "", key),
        heading(entry.tone, entry.state),
        facts([
          ["holder", entry.holder], ["why", entry.reason], ["asked for", entry.from && `${clock(entry.from)} (${age(entry)} ago)`],
          ["ends", ends && clock(ends)], ["waits for", entry.state === "queued" ? wantedOf(entry) : null],
          ["warnings", entry.warnings],
        ]),
      ];
      const devices = Object.entries(entry.devices || {});
      if (devices.length) made.push(element("h3", "", "Devices"), facts(devices));
      return made;
    },
  };

  const DEVICE_COLUMNS = [
    { title: "Device", width: "minmax(4.5em, 2fr)", className: "strong first", text: (it) => it.id, order: (it) => it.id },
    { title: "Health", width: "6.8em", className: "first", text: (it) => it.health, tone: (it) => it.tone, order: (it) => it.health },
    { title: "NUMA", width: "3.7em", className: "number faint hideable", text: (it) => (it.numa || []).join(" "), order: (it) => (it.numa || [])[0] || 0 },
    {
      title: "Holder", width: "minmax(8em, 7fr)", className: "wide", order: (it) => (it.lease ? it.lease.key : ""),
      text: (it) => (it.lease ? holderOf(it.lease) : "free"),
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
  const FETCH = {
    headers: { Authorization: `Bearer ${sessionStorage.getItem(KEPT) || ""}` },
    cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer", redirect: "error",
  };
  // The server sends something every ten seconds.
  const SILENCE = 30000;
  let connected = false;
  let wasConnected = false;

  async function follow() {
    for (;;) {
      let why = null;
      const stop = new AbortController();
      try {
        const reply = await fetch("/events", { ...FETCH, signal: stop.signal });
        if (reply.status === 401) {
          refuse();
          return;
        }
        if (!reply.ok) throw new Error((await reply.json()).error);
        await readEvents(reply.body, stop);
      } catch (error) {
        why = error;
      }
      stop.abort(why);
      connected = false;
      draw();
      await new Promise((done) => setTimeout(done, 1000));
    }
  }

  async function readEvents(body, stop) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const silence = setTimeout(() => stop.abort(), SILENCE);
      const { value, done } = await reader.read();
      clearTimeout(silence);
      if (done) return;
      connected = wasConnected = true;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const found = /^event: (\w+)\ndata: (.*)$/.exec(event);
        if (found) take(found[1], JSON.parse(found[2]));
      }
    }
  }

  function refuse() {
    const banner = byId("banner");
    banner.hidden = false;
    setText(banner, "This address has no token, or an old one. Open the one that 'plugind page' has printed.");
    setText(byId("connection"), "not connected");
  }

  // --- the start -----------------------------------------------------------------------------------------------------

  for (const name of Object.keys(COLUMNS)) {
    grids[name] = new Grid(byId("pane"), name, COLUMNS[name], (key) => open(name, key));
    grids[name].outer.setAttribute("aria-label", byId(`tab-${name}`).textContent);
    grids[name].outer.hidden = name !== tab;
    byId(`tab-${name}`).addEventListener("click", () => showTab(name));
  }
  byId("tabs").addEventListener("keydown", (event) => {
    const names = Object.keys(COLUMNS);
    const step = { ArrowRight: 1, ArrowLeft: names.length - 1 }[event.key];
    if (step === undefined) return;
    showTab(names[(names.indexOf(tab) + step) % names.length]);
    byId(`tab-${tab}`).focus();
  });
  byId("filter").addEventListener("input", () => {
    grids[tab].outer.scrollTop = 0;
    draw();
  });
  byId("problems").addEventListener("change", draw);
  byId("chosen").addEventListener("click", () => {
    [chosenType, chosenState] = [null, null];
    draw();
  });
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !typing) {
      byId("filter").focus();
      event.preventDefault();
    } else if (event.key === "Escape" && looked !== null) {
      closeDetails();
    } else if (event.key === "Escape" && event.target === byId("filter")) {
      byId("filter").value = "";
      draw();
    } else if (event.key === "ArrowDown" && event.target === byId("filter")) {
      grids[tab].outer.focus();
      event.preventDefault();
    }
  });
  addEventListener("resize", draw);
  // Ages grow while nothing changes.
  setInterval(() => {
    if (!document.hidden) grids[tab].draw();
  }, 1000);
  follow();
})();
