// The shell: navigation, the page of the address, live refresh, keyboard, theme, and login.

import { h, render } from "./dom.js";
import { get, post, del } from "./api.js";
import { Field, Icon, app, button, dialog, submit, toast } from "./ui.js";

const EVERY = 2000;
const PAGES = [
  [/^$/, "overview"], [/^queues$/, "queues"], [/^queues\/([^/]+)$/, "queue"],
  [/^queues\/([^/]+)\/messages$/, "messages"], [/^queues\/([^/]+)\/messages\/([^/]+)$/, "message"],
  [/^queues\/([^/]+)\/dead$/, "dead_queue"], [/^queues\/([^/]+)\/groups\/([^/]+)$/, "group"],
  [/^queues\/([^/]+)\/push$/, "push"], [/^queues\/([^/]+)\/tail$/, "tail"], [/^dead$/, "dead"], [/^groups$/, "groups"],
  [/^leases$/, "leases"], [/^work$/, "work"], [/^pipelines$/, "pipelines"], [/^tokens$/, "tokens"], [/^audit$/, "audit"],
];
const NAV = [["overview", "", "Overview"], ["queues", "queues", "Queues"], ["dead", "dead", "Dead letters"],
  ["groups", "groups", "Groups"], ["leases", "leases", "Leases"], ["work", "work", "Workers and jobs"],
  ["pipelines", "pipelines", "Pipelines"], ["tokens", "tokens", "Tokens"], ["audit", "audit", "Audit"]];
const SECTION = { queue: "queues", messages: "queues", message: "queues", push: "queues", tail: "queues", dead_queue: "dead", group: "groups" };

const root = document.getElementById("app");
const shell = { paused: localStorage.getItem("paused") === "1", problem: "", menu: false };
let page = null, timer = 0, number = 0;

function theme(next) {
  const stored = next === undefined ? localStorage.getItem("theme") : next;
  if (stored) {
    document.documentElement.dataset.theme = stored;
    localStorage.setItem("theme", stored);
  }
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  theme(dark === "dark" ? "light" : "dark");
}

function parse() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const clean = path.replace(/\/$/, "");
  for (const [pattern, name] of PAGES) {
    const found = pattern.exec(clean);
    try {
      if (found) return { name, params: found.slice(1).map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query)) };
    } catch { /* the address is cut in the middle of a letter */ }
  }
  return { name: null, params: [], query: {} };
}

// Change the query of the address without a new page; the address can be shared.
function setQuery(changes, replace = true) {
  const at = parse();
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...at.query, ...changes })) if (value !== "" && value != null && value !== false) query.set(name, value);
  const text = query.toString();
  const hash = `#/${location.hash.replace(/^#\/?/, "").split("?")[0]}${text ? `?${text}` : ""}`;
  if (replace) {
    history.replaceState(null, "", hash);
    navigate();
  } else location.hash = hash;
}

async function navigate() {
  const at = parse();
  const mine = ++number;
  clearTimeout(timer);
  if (!app.session) return;
  if (app.session.login) return draw();
  if (!at.name) {
    page = { at, view: null, missing: true };
    return draw();
  }
  const again = page && page.at.name === at.name && page.at.params.join("\n") === at.params.join("\n");
  if (!again) {
    page?.abort?.abort();
    page?.view?.leave?.(page.ctx);
  }
  const view = (await import(`./pages/${at.name}.js`)).default;
  if (mine !== number) return;
  const ctx = again ? page.ctx : { state: {} };
  Object.assign(ctx, { params: at.params, query: at.query, setQuery, update: draw, reload: () => refresh(true), live: () => !shell.paused });
  page = { at, view, ctx, data: again ? page.data : null, loading: true };
  shell.menu = false;
  if (!again) {
    shell.problem = "";
    document.title = `${view.title(at.params)} · Ackflow`;
    view.enter?.(ctx);
    draw();
    window.scrollTo(0, 0);
    root.querySelector("h1")?.focus({ preventScroll: true });
  }
  refresh();
}

async function refresh(forced) {
  clearTimeout(timer);
  const mine = page;
  if (!mine?.view?.load) return draw();
  mine.abort?.abort();
  mine.abort = new AbortController();
  const signal = mine.abort.signal;
  const started = performance.now();
  try {
    const data = await mine.view.load(mine.ctx, signal);
    if (page !== mine || signal.aborted) return;
    mine.data = data;
    mine.loading = false;
    shell.problem = "";
  } catch (error) {
    if (page !== mine || error.name === "AbortError" || signal.aborted) return;
    if (error.status === 401) return start();
    mine.loading = false;
    shell.problem = error.message;
    shell.away = error.status === 0;
    if (forced) toast(error.message, "bad");
  }
  draw();
  // A page that is slow to read is read less often, so that it never keeps the server busy.
  plan(Math.max(EVERY, 10 * (performance.now() - started)));
}

function live() {
  const set = page?.view?.live;
  return typeof set === "function" ? set(page.ctx) : set;
}

function plan(delay) {
  clearTimeout(timer);
  if ((live() || shell.problem) && !shell.paused && !document.hidden) timer = setTimeout(refresh, delay);
}

function pause() {
  shell.paused = !shell.paused;
  localStorage.setItem("paused", shell.paused ? "1" : "0");
  draw();
  if (!shell.paused) refresh();
}

function draw() {
  if (!app.session) return;
  if (app.session.login) return render(root, h(Login, { key: "login" }));
  render(root, h(Shell, { key: "shell" }));
}

function Shell() {
  const who = app.session;
  const section = SECTION[page?.at.name] || page?.at.name;
  const links = NAV.filter(([name]) => who.open || !["tokens", "audit"].includes(name) || who.role === "admin")
    .filter(([name]) => who.everywhere || !["work", "pipelines"].includes(name));
  return h("div", { class: `shell ${shell.menu ? "menu-open" : ""}`, key: "shell" },
    h("a.skip", { href: "#main", onClick: (event) => { event.preventDefault(); root.querySelector("h1")?.focus(); } }, "Skip to content"),
    h("aside.side", null,
      h(".brand", null, h("a", { href: "#/" }, h("img", { src: "icon.svg", alt: "", width: 26, height: 26 }), "Ackflow"),
        button(h(Icon, { name: shell.menu ? "close" : "menu" }), () => { shell.menu = !shell.menu; draw(); }, "plain menu", { label: "Menu" })),
      h("nav", { "aria-label": "Pages" }, links.map(([name, path, label]) =>
        h("a", { href: `#/${path}`, key: name, "aria-current": section === name ? "page" : null }, h(Icon, { name }), label))),
      h(".side-foot", null,
        h(".who", null, who.open ? "No token required" : h("span", null, who.name, h("small", null, who.role))),
        who.read_only && h("span.badge.info", null, "Read-only"),
        who.masked && h("span.badge.quiet", null, "Fields masked"),
        who.open ? null : button("Log out", logOut, "plain"),
        h("small", null, `Ackflow ${who.version}`))),
    h(".main", null,
      h(".bar", null,
        h("form.search", { role: "search", onSubmit: (event) => { event.preventDefault(); search(event.target.elements.q.value); } },
          h(Icon, { name: "search" }), h("input", { name: "q", type: "search", placeholder: "Queue or message id", "aria-label": "Search for a queue or a message id", autocomplete: "off", spellcheck: "false" }), h("kbd", null, "/")),
        h(".bar-actions", null,
          h("span", { class: `live ${shell.problem ? "bad" : shell.paused || !live() ? "" : "on"}` },
            shell.problem ? (shell.away ? "Disconnected" : "Error") : !live() ? "" : shell.paused ? "Paused" : "Live"),
          live() && button(h(Icon, { name: shell.paused ? "play" : "pause" }), pause, "plain", { label: shell.paused ? "Resume live updates" : "Pause live updates", pressed: String(shell.paused) }),
          button(h(Icon, { name: "refresh" }), () => refresh(true), "plain", { label: "Refresh", title: "Refresh (r)" }),
          button(h(Icon, { name: "sun" }), switchTheme, "plain", { label: "Change theme", title: "Change theme (t)" }),
          button(h(Icon, { name: "help" }), help, "plain", { label: "Keyboard help", title: "Keyboard (?)" }))),
      shell.problem && (page?.data || page?.loading) && h(".banner.bad", { role: "alert" }, shell.problem),
      h("main", { id: "main", key: page ? page.at.name + page.at.params.join("/") : "none" },
        page?.missing ? h(".empty", null, h("h1", { tabindex: "-1" }, "No such page"), h("a", { href: "#/" }, "Overview"))
          : page?.view && shell.problem && !page.data && !page.loading ? h(".empty", null, h("h1", { tabindex: "-1" }, page.view.title(page.at.params)), h("p", null, shell.problem), h("a", { href: "#/" }, "Overview"))
            : page?.view ? page.view.view(page.ctx, page.data) : null)));
}

function Login() {
  return h("main.login", { key: "login" }, h("form", { onSubmit: logIn },
    h("img", { src: "icon.svg", alt: "", width: 40, height: 40 }), h("h1", { tabindex: "-1" }, "Log in to Ackflow"),
    h("p", null, "This server requires an access token. Create one on its machine: ", h("code", null, "ackflow token create NAME")),
    h(Field, { label: "Token", name: "token", type: "password", required: true, autofocus: true, autocomplete: "current-password" }),
    h("p.problem", { role: "alert" }, shell.problem), submit("Log in")));
}

async function logIn(event) {
  event.preventDefault();
  try {
    app.session = await post("/v1/session", { token: event.target.elements.token.value.trim() });
    shell.problem = "";
    root.shown = null;
    navigate();
  } catch (error) {
    shell.problem = error.status === 401 ? "The token is unknown, expired or revoked." : error.message;
    draw();
  }
}

async function logOut() {
  await del("/v1/session");
  page = null;
  start();
}

async function search(text) {
  const wanted = text.trim();
  if (!wanted) return;
  if (/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/i.test(wanted)) {
    try {
      const found = await get("/v1/locate", { id: wanted });
      location.hash = `#/queues/${encodeURIComponent(found.queue)}/messages/${wanted}`;
    } catch (error) {
      toast(error.message, "bad");
    }
    return;
  }
  location.hash = `#/queues?filter=${encodeURIComponent(wanted)}`;
}

const KEYS = [["/", "Search"], ["g o", "Overview"], ["g q", "Queues"], ["g d", "Dead letters"], ["g g", "Groups"], ["g l", "Leases"],
  ["g j", "Workers and jobs"], ["g p", "Pipelines"], ["g a", "Audit"], ["r", "Refresh"], ["p", "Pause or resume live updates"], ["t", "Dark or light"], ["?", "This help"], ["Esc", "Close"]];
const GO = { o: "", q: "queues", d: "dead", g: "groups", l: "leases", j: "work", p: "pipelines", a: "audit" };
let prefix = 0;

function help() {
  dialog("Keyboard", (close) => h("div", null, h("dl.keys", null, KEYS.map(([keys, text]) => h("div", { key: keys },
    h("dt", null, keys.split(" ").map((key) => h("kbd", null, key))), h("dd", null, text)))),
  h("footer", null, button("Close", () => close(), "primary", { autofocus: true }))));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || app.session?.login) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const after = Date.now() - prefix < 1200;
  prefix = 0;
  if (after && event.key in GO) {
    location.hash = `#/${GO[event.key]}`;
    return event.preventDefault();
  }
  const actions = { "/": () => root.querySelector(".search input")?.focus(), r: () => refresh(true), t: switchTheme, p: pause, "?": help, g: () => { prefix = Date.now(); } };
  if (actions[event.key]) {
    actions[event.key]();
    event.preventDefault();
  }
});

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : live() && !shell.paused && refresh()));
window.addEventListener("hashchange", navigate);

async function start() {
  try {
    app.session = await get("/v1/session");
  } catch (error) {
    root.textContent = error.message;
    return setTimeout(start, 2000);
  }
  root.shown = null;
  navigate();
}

app.reload = () => refresh();
theme();
start();
