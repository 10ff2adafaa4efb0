// What pages do beyond links and forms: they look again while they are open, and they have keys.
const EVERY = 2000; // milliseconds between two looks
const TYPED = "input, textarea, select, [contenteditable]";
const prefix = document.body.dataset.prefix || "";
const live = document.getElementById("live");
const badge = document.getElementById("badge");
document.documentElement.classList.add("on");

let tag = null; // of the fragment on the page
let held = null; // a newer one that is not shown, and its tag
let timer = 0;
let failures = 0;

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Whether the visitor is at something that a change of the page would disturb.
function busy() {
  const at = document.activeElement;
  if (at && at.matches(TYPED) && live.contains(at) && at.type !== "checkbox") return true;
  const chosen = getSelection();
  if (chosen && !chosen.isCollapsed && chosen.anchorNode && live.contains(chosen.anchorNode)) return true;
  if (document.querySelector("dialog[open]")) return true;
  return Boolean(live.querySelector("details.ask[open], input[name=id]:checked, [data-all]:checked"));
}

const keysOf = (root) => all("[data-row]", root).map((row) => row.dataset.row);

// Whether rows would move below the pointer.
function movesRows(next) {
  const table = live.querySelector("table[data-hold]:hover");
  if (!table) return false;
  return keysOf(table).join("\n") !== keysOf(next).join("\n");
}

function changes(next) {
  const now = new Map(all("[data-row]", live).map((row) => [row.dataset.row, row.textContent]));
  return all("[data-row]", next).filter((row) => now.get(row.dataset.row) !== row.textContent).length;
}

function show(html) {
  const here = live.querySelector("tr.here")?.dataset.row;
  Idiomorph.morph(live, `<div id="live">${html}</div>`, {
    ignoreActiveValue: true,
    callbacks: {
      beforeAttributeUpdated: (name, node) =>
        !(name === "open" && node.matches("details, dialog")) && !(name === "checked" && node.matches("input")),
    },
  });
  if (here) live.querySelector(`[data-row="${CSS.escape(here)}"]`)?.classList.add("here");
  prepare();
  say("");
}

function say(text) {
  if (badge.textContent !== text) badge.textContent = text;
  badge.hidden = !text;
}

function offer(html, mark) {
  const next = new DOMParser().parseFromString(html, "text/html");
  if (!busy() && !movesRows(next)) {
    tag = mark;
    held = null;
    show(html);
    return;
  }
  if (next.body.textContent.trim() === live.textContent.trim()) {
    tag = mark;
    held = null;
    return;
  }
  held = { html, mark };
  const count = changes(next);
  say(`${count ? `${count} change${count === 1 ? "" : "s"}` : "Changed"}: press . to show`);
}

async function look(forced = false) {
  clearTimeout(timer);
  if (!document.hidden || forced) {
    const url = new URL(location.href);
    url.searchParams.set("fragment", "1");
    const known = held ? held.mark : tag;
    try {
      const answer = await fetch(url, { headers: known ? { "If-None-Match": known } : {}, redirect: "error" });
      failures = 0;
      if (answer.status === 200) {
        const mark = answer.headers.get("etag");
        const html = await answer.text();
        offer(html, mark); // the first one too: something may have changed since the page was made
      } else if (answer.status === 304) {
        if (held && !busy()) {
          const newer = held;
          offer(newer.html, newer.mark);
        } else if (!held) say("");
      } else if (answer.status === 401) {
        say("Logged out: load the page again");
        return;
      } else say(`Not up to date: the console answers ${answer.status}`);
    } catch {
      failures += 1;
      if (failures > 1) say("Not up to date: the console does not answer");
    }
  }
  timer = setTimeout(look, EVERY * Math.min(8, 1 + failures));
}

// Buttons that need a script

async function copy(button) {
  const text = document.querySelector(button.dataset.copy)?.textContent ?? "";
  try {
    await navigator.clipboard.writeText(text); // there is none on plain HTTP, but for localhost
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function ticks() {
  const boxes = all("input[name=id]", live);
  const ticked = boxes.filter((box) => box.checked).length;
  for (const one of all("[data-ticked]")) one.textContent = ticked;
  for (const one of all("[data-with-ticked]")) one.hidden = !ticked;
  for (const one of all("[data-all]")) {
    one.checked = ticked > 0 && ticked === boxes.length;
    one.indeterminate = ticked > 0 && ticked < boxes.length;
  }
}

let lastTick = null;
document.addEventListener("click", (event) => {
  const copying = event.target.closest("[data-copy]");
  if (copying) copy(copying);
  const following = event.target.closest("[data-follow]");
  if (following) follow(following);
  const box = event.target.closest("input[name=id]");
  if (box) {
    if (event.shiftKey && lastTick && lastTick !== box) {
      const boxes = all("input[name=id]", live);
      const [from, to] = [boxes.indexOf(lastTick), boxes.indexOf(box)].sort((a, b) => a - b);
      for (const one of boxes.slice(from, to + 1)) one.checked = box.checked;
    }
    lastTick = box;
    ticks();
  }
  if (event.target.matches("[data-all]")) {
    for (const one of all("input[name=id]", live)) one.checked = event.target.checked;
    ticks();
  }
  if (event.target.closest("[data-help]")) {
    event.preventDefault();
    help();
  }
  for (const open of all("details.ask[open]")) if (!open.contains(event.target)) open.open = false;
});

// Following a log: one stream, which begins where the page ends.

let stream = null;

function follow(button) {
  const log = document.getElementById("log");
  const status = document.getElementById("following");
  if (stream) {
    stream.close();
    stream = null;
    button.setAttribute("aria-pressed", "false");
    status.textContent = "";
    return;
  }
  log.textContent = "";
  document.getElementById("nolog")?.remove();
  button.setAttribute("aria-pressed", "true");
  status.textContent = "following";
  stream = new EventSource(button.dataset.follow);
  stream.addEventListener("lines", (event) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    log.append(JSON.parse(event.data).text);
    if (atEnd) log.scrollTop = log.scrollHeight; // else the visitor reads further up
  });
  stream.addEventListener("trouble", (event) => (status.textContent = JSON.parse(event.data).text));
  stream.addEventListener("end", () => {
    stream.close();
    stream = null;
    button.remove();
    status.textContent = "the task has ended";
  });
  stream.onerror = () => (status.textContent = "connecting again");
  stream.onopen = () => (status.textContent = "following");
}

async function help() {
  let dialog = document.getElementById("help");
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.id = "help";
    dialog.setAttribute("aria-label", "Keys");
    const answer = await fetch(`${prefix}/keys?fragment=1`);
    dialog.innerHTML = await answer.text();
    document.body.append(dialog);
  }
  dialog.showModal();
}

// Keys

const rows = () => all("tr[data-row], li[data-row]", live);
const current = () => live.querySelector(".here");

function move(step) {
  const list = rows();
  if (!list.length) return;
  const at = list.indexOf(current());
  const next = list[Math.max(0, Math.min(list.length - 1, at < 0 ? (step > 0 ? 0 : list.length - 1) : at + step))];
  current()?.classList.remove("here");
  next.classList.add("here");
  next.scrollIntoView({ block: "nearest" });
  next.querySelector("a, button, summary")?.focus({ preventScroll: true });
}

function press(selector) {
  const found = current()?.querySelector(selector) ?? all(selector).find((one) => !one.closest("[data-row]"));
  if (found) found.click();
  if (found?.matches("summary")) found.parentElement.querySelector("input:not([type=hidden]), button")?.focus();
}

let gone = 0; // until when a key after g leads to a page
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const open of all("details.ask[open]")) open.open = false;
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches(TYPED)) return;
  if (document.querySelector("dialog[open]")) return;
  const key = event.key;
  if (performance.now() < gone) {
    gone = 0;
    const link = document.querySelector(`[data-go="${CSS.escape(key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  const acts = {
    g: () => (gone = performance.now() + 1500),
    j: () => move(1),
    k: () => move(-1),
    x: () => current()?.querySelector("input[name=id]")?.click(),
    r: () => press("[data-key=r]"),
    c: () => press("[data-key=c]"),
    y: () => press("[data-key=y]"),
    u: () => document.querySelector("[data-undo]")?.click(),
    "/": () => document.getElementById("q")?.focus(),
    ".": () => (held ? (tag = held.mark, show(held.html), (held = null)) : look(true)),
    z: () => toggleZone(),
    "?": () => help(),
  };
  if (acts[key]) {
    event.preventDefault();
    acts[key]();
  }
});

function toggleZone() {
  const zone = document.getElementById("zone");
  const other = Intl.DateTimeFormat().resolvedOptions().timeZone;
  zone.value = zone.value === "UTC" ? other : "UTC";
  zone.form.submit();
}

function prepare() {
  ticks();
}

const tab = document.querySelector(".side [aria-current]"); // on a phone it may be out of view
if (tab) tab.closest("nav").scrollLeft = tab.offsetLeft - 60;
const zones = document.getElementById("zone");
const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zones && own && ![...zones.options].some((one) => one.value === own)) zones.add(new Option(own, own));
prepare();
if ("live" in document.body.dataset) {
  document.addEventListener("visibilitychange", () => document.hidden || look());
  look();
}
