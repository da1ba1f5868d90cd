// Parts that pages are made of: tables, badges, menus, dialogs, messages, and bulk actions.

import { h, render } from "./dom.js";
import { n, plural, groupName } from "./format.js";
import { seg } from "./api.js";

export const app = { session: null, reload: () => {}, go: (to) => { location.hash = to; } };

const RANK = { "read-only": 0, "read-write": 1, admin: 2 };

// Whether to offer an action; the server decides again when it is done.
export function may(role, queue) {
  const who = app.session;
  if (!who || who.read_only) return false;
  if (who.open) return true;
  return who.grants.some(([given, pattern]) => RANK[given] >= RANK[role] && (queue === undefined || fits(queue, pattern)));
}

function fits(name, pattern) {
  const source = pattern.replace(/[.+^${}()|\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".").replace(/\[!/g, "[^");
  try {
    return new RegExp(`^${source}$`, "s").test(name);
  } catch {
    return false;
  }
}

export const link = {
  queue: (name, rest = "") => `#/queues/${seg(name)}${rest}`,
  message: (queue, id) => `#/queues/${seg(queue)}/messages/${seg(id)}`,
  group: (queue, group) => `#/queues/${seg(queue)}/groups/${seg(group)}`,
  dead: (queue, query = "") => `#/queues/${seg(queue)}/dead${query}`,
};

const ICONS = {
  overview: "M3 13h7V3H3zM14 21h7V11h-7zM3 21h7v-5H3zM14 8h7V3h-7z",
  queues: "M4 6h16M4 12h16M4 18h10",
  dead: "M6 7v13h12V7M3 7h18M9 7V4h6v3M10 11v5M14 11v5",
  groups: "M8 11a3 3 0 100-6 3 3 0 000 6zM2 20c0-4 3-6 6-6s6 2 6 6M17 11a2.5 2.5 0 100-5M18 14c2.500 .3 4 2.200 4 5",
  leases: "M6 11V8a6 6 0 0112 0v3M5 11h14v10H5z",
  work: "M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2",
  pipelines: "M5 5h5v5H5zM14 14h5v5h-5zM7.500 10v6.500H14",
  tokens: "M15 9a4 4 0 11-3 6.600L9 19H6v-3l5-4.500A4 4 0 0115 9z",
  audit: "M6 3h9l4 4v14H6zM9 12h7M9 16h7M9 8h3",
  search: "M11 4a7 7 0 100 14 7 7 0 000-14zM20 20l-4-4",
  pause: "M8 5v14M16 5v14", play: "M7 5l12 7-12 7z", refresh: "M20 11a8 8 0 10-2.300 6M20 5v6h-6",
  sun: "M12 7a5 5 0 100 10 5 5 0 000-10zM12 1v2M12 21v2M1 12h2M21 12h2M4.200 4.200l1.400 1.400M18.400 18.400l1.400 1.400M19.800 4.200l-1.400 1.400M5.600 18.400l-1.400 1.400",
  help: "M9 9a3 3 0 115 2.200c-1 .8-2 1.400-2 2.800M12 18v.1", menu: "M4 6h16M4 12h16M4 18h16", close: "M6 6l12 12M18 6L6 18",
};

export function Icon({ name }) {
  return h("svg.icon", { viewBox: "0 0 24 24", "aria-hidden": "true" }, h("path", { d: ICONS[name] }));
}

const BADGES = {
  dying: "bad", failing: "bad", "dead letters": "bad", stalled: "warn", behind: "warn", paused: "info",
  "group paused": "info", "no group": "quiet",
};

export const badge = (text, kind) => h("span", { key: text, class: `badge ${kind || BADGES[text] || "quiet"}` }, text);
export const badges = (texts) => h("span.badges", null, texts.map((one) => badge(one)));

const STATE = { ready: "ready", leased: "leased", waiting: "waiting", delayed: "waiting", dead: "dead", acked: "ok",
  settled: "ok", done: "ok", requeued: "ok", held_back: "waiting", paused: "info", window_full: "waiting" };

export const State = ({ state }) => (state && h("span", { class: `state ${STATE[state] || "quiet"}` }, state.replace("_", " ")));

// A number of messages; zero is quiet, so that what matters stands out.
export function count(value, css, href) {
  const text = n(value);
  const name = `num${value ? ` ${css || ""}` : " zero"}`;
  return href && value ? h("a", { class: name, href }, text) : h("span", { class: name }, text);
}

// Long text in a cell is cut after some lines, and shown on hover.
const cut = (text) => (typeof text === "string" && text.length > 40 ? h("span.clamp", { title: text }, text) : text);

// columns: [label, classes, cell(row), sort]; the class n is of numbers. `by` is the field, or a function, whose
// value is the key of a row.
export function Table({ columns, rows, by = "name", sort, descending, onSort, caption, empty: none, selected, onSelect }) {
  if (rows && !rows.length) return none || empty("Nothing here");
  const rowKey = typeof by === "string" ? (row) => row[by] : by;
  const all = selected && rows && rows.length > 0 && rows.every((row) => selected.has(rowKey(row)));
  return h(".table-scroll", { tabindex: "0", role: "region", "aria-label": caption }, h("table", null,
    h("caption.sr", null, caption),
    h("thead", null, h("tr", null,
      selected && h("th.check", null, h("input", { type: "checkbox", "aria-label": "Select all shown", checked: !!all,
        onChange: () => { rows.forEach((row) => (all ? selected.delete(rowKey(row)) : selected.add(rowKey(row)))); onSelect(); } })),
      columns.map(([label, css, , order]) => h("th", {
        class: css, scope: "col", "aria-sort": sort && order ? (sort === order ? (descending ? "descending" : "ascending") : "none") : null,
      }, order && onSort
        ? h("button.sort", { type: "button", onClick: () => onSort(order, sort === order ? !descending : css.split(" ")[0] === "n") },
          label, h("span.arrow", { "aria-hidden": "true" }, sort === order ? (descending ? "↓" : "↑") : ""))
        : label || h("span.sr", null, "Actions"))))),
    h("tbody", null, rows ? rows.map((row) => h("tr", { key: rowKey(row), class: selected?.has(rowKey(row)) ? "selected" : "" },
      selected && h("td.check", null, h("input", { type: "checkbox", checked: selected.has(rowKey(row)), "aria-label": `Select ${rowKey(row)}`,
        onChange: () => { const key = rowKey(row); selected.has(key) ? selected.delete(key) : selected.add(key); onSelect(); } })),
      columns.map(([, css, cell]) => h("td", { class: css }, cut(cell(row))))))
      : Array.from({ length: 6 }, () => h("tr.loading", null, columns.map(() => h("td", null, h("span.bone", null))))))));
}

export function empty(title, kids, icon) {
  return h(".empty", null, icon && h(Icon, { name: icon }), h("p.empty-title", null, title), kids && h("div", null, kids));
}

export function stat(label, value, css, { unit, href, title } = {}) {
  return h(href ? "a" : "div", { class: `stat ${css || ""}`, href, title },
    h("span.stat-label", null, label), h("span.stat-value", null, value, unit && h("small", null, ` ${unit}`)));
}

export function Card({ title, actions, css }, kids) {
  return h("section", { class: `card ${css || ""}` }, title && h("header.card-head", null, h("h2", null, title), h(".actions", null, actions)), kids);
}

export function Button({ onClick, kind, disabled, title, label, type, pressed }, kids) {
  return h("button", { type: type || "button", class: `button ${kind || ""}`, onClick, disabled, title, "aria-label": label, "aria-pressed": pressed }, kids);
}

export const button = (text, onClick, kind, more) => h(Button, { onClick, kind, ...more }, text);
export const submit = (text, kind = "primary") => h(Button, { type: "submit", kind }, text);

// Buttons of which one is pressed: [[value, label], ...].
export function segments(label, items, at, choose, more) {
  return h(".segments", { role: "group", "aria-label": label }, items.map(([value, text, disabled]) =>
    h("button", { type: "button", "aria-pressed": String(value === at), disabled, onClick: () => choose(value) }, text)), more);
}

export function Head({ title, crumbs, badge }, actions) {
  return h("header.page-head", null, h(".page-title", null,
    crumbs && h("nav.crumbs", { "aria-label": "Path" }, crumbs.map(([label, href]) => [h("a", { href }, label), h("span", { "aria-hidden": "true" }, "/")])),
    h("h1", { tabindex: "-1" }, title, badge)), h(".actions", null, actions));
}

export function Tabs({ items, at }) {
  return h("nav.tabs", { "aria-label": "Views" }, items.map(([name, href, count]) =>
    h("a", { href, "aria-current": name === at ? "page" : null }, name, count != null && h("span.tab-count", null, n(count)))));
}

export function Field({ label, hint, ...props }) {
  const { options, area, value, ...rest } = props;
  const input = options ? h("select", { ...rest, value }, options.map((one) => {
    const [key, text] = Array.isArray(one) ? one : [one, one];
    return h("option", { value: key, selected: key === value }, text);
  })) : area ? h("textarea", { ...rest, value, rows: area, spellcheck: "false" }) : h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...rest, value });
  return h("label.field", null, h("span", null, label), input, hint && h("small", null, hint));
}

// A field of the query in the address, which changes it once typing pauses.
export const Filter = ({ ctx, name, label, placeholder }) => h(Field, { label, placeholder, type: "search", value: ctx.query[name] || "", onInput: (event) => {
  clearTimeout(ctx.state.typing);
  const text = event.target.value;
  ctx.state.typing = setTimeout(() => ctx.setQuery({ [name]: text, after: "" }), 250);
} });

// A choice that is kept in the query of the address; the first option is not.
export const Choice = ({ ctx, name, label, options: [first, ...others] }) => h(Field, { label, value: ctx.query[name] || "", options: [["", first], ...others],
  onChange: (event) => ctx.setQuery({ [name]: event.target.value, after: "" }) });

// The foot of a table with pages: `next` continues it, `back` is the page before where it is known.
export function Foot({ ctx, text, next, back, first = "First", more = "Next", name = "after" }, kids) {
  const go = (label, to, at) => button(label, () => ctx.setQuery({ [name]: to }, false), "small", { disabled: at == null });
  return h(".foot", null, h("span", null, text), h(".actions", null, kids,
    back !== undefined ? go("Previous", back || "", back) : ctx.query[name] && go(first, "", 0), go(more, next, next)));
}

export const GroupLink = ({ queue, group }) => h("a", { href: link.group(queue, group), title: group }, groupName(group));

// messages at the edge of the window

export function toast(text, kind = "ok") {
  const box = document.createElement("div");
  box.className = `toast ${kind}`;
  box.textContent = text;
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), kind === "bad" ? 9000 : 4500);
}

// Run an action, tell how it went, and show the new state.
export async function run(action, done) {
  try {
    const result = await action();
    toast(typeof done === "function" ? done(result) : done);
    app.reload();
    return result;
  } catch (error) {
    toast(error.message, "bad");
    app.reload();
    return undefined;
  }
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // not a secure context
    const area = document.createElement("textarea");
    area.value = text;
    (document.querySelector("dialog[open]") || document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied");
}

// dialogs

// Open a dialog; `view(close, update)` returns its content. Resolves with what `close` is given.
export function dialog(title, view, css = "") {
  return new Promise((resolve) => {
    const box = document.createElement("dialog");
    box.className = css;
    box.setAttribute("aria-label", title);
    document.body.append(box);
    const back = document.activeElement;
    const close = (value) => {
      box.remove();
      if (back && back.isConnected) back.focus();
      resolve(value);
    };
    const update = () => render(box, h(".dialog", null, h("header", null, h("h2", null, title),
      button(h(Icon, { name: "close" }), () => close(), "plain", { label: "Close" })), view(close, update)));
    box.addEventListener("cancel", (event) => { event.preventDefault(); close(); });
    update();
    box.showModal();
    (box.querySelector("[autofocus]") || box.querySelector("input, textarea, select"))?.focus();
  });
}

// Ask before something that cannot be undone; with `type`, this text has to be typed.
export function confirm(title, { text, button: label, danger = true, type }) {
  let typed = "";
  return dialog(title, (close, update) => h("form", { onSubmit: (event) => { event.preventDefault(); if (!type || typed === type) close(true); } },
    h(".dialog-text", null, text),
    type && h(Field, { label: `Type ${type} to confirm`, value: typed, autofocus: true, name: "confirm", onInput: (event) => { typed = event.target.value; update(); } }),
    h("footer", null, button("Cancel", () => close(false)),
      h(Button, { type: "submit", kind: danger ? "danger" : "primary", disabled: type ? typed !== type : false }, label))));
}

// A form with some fields: {name: {label, value, ...}}; resolves with the values, or undefined.
export function form(title, fields, { text, button: label = "Save", danger, check } = {}) {
  const values = Object.fromEntries(Object.entries(fields).map(([name, one]) => [name, one.value ?? ""]));
  let problem = "";
  return dialog(title, (close, update) => h("form", { onSubmit: (event) => {
    event.preventDefault();
    problem = check ? check(values) || "" : "";
    problem ? update() : close(values);
  } }, text && h(".dialog-text", null, text),
  Object.entries(fields).map(([name, one]) => h(Field, { ...one, name, value: values[name],
    onInput: (event) => { values[name] = event.target.value; update(); } })),
  problem && h("p.problem", { role: "alert" }, problem),
  h("footer", null, button("Cancel", () => close()), submit(label, danger ? "danger" : "primary"))));
}

// Do something in steps of at most 1,000 until it is done, with progress, cancel and a summary.
// `step(after)` returns {done, next, failed: [[what, why]]}.
export function bulk(title, total, step, { rate } = {}) {
  let done = 0, begun = false, stopped = false, ended = false, problem = "", failed = [];
  return dialog(title, (close, update) => {
    const work = async () => {
      const start = Date.now();
      try {
        for (let after = 0; after !== null && !stopped;) {
          const result = await step(after);
          done += result.done;
          failed = failed.concat(result.failed || []);
          after = result.next;
          update();
          const due = rate ? (done / rate) * 1000 - (Date.now() - start) : 0;
          for (let left = due; left > 0 && !stopped; left -= 100) await new Promise((go) => setTimeout(go, Math.min(left, 100)));
        }
      } catch (error) {
        problem = error.message;
      }
      ended = true;
      update();
      app.reload();
    };
    if (!begun) queueMicrotask(work);
    begun = true;
    return h(".bulk", null,
      h("progress", { max: Math.max(1, total || done), value: ended ? total || done || 1 : done, "aria-label": title }),
      h("p.bulk-state", { role: "status" }, ended ? (stopped ? "Cancelled: " : problem ? "Stopped: " : "Done: ") : "Working: ",
        plural(done, "item"), total ? ` of ${n(total)}` : "", failed.length ? `, ${n(failed.length)} not done` : ""),
      problem && h("p.problem", { role: "alert" }, problem),
      failed.length ? h("ul.failures", null, failed.slice(0, 50).map(([what, why]) => h("li", null, h("code", null, what), " ", why))) : null,
      h("footer", null, ended ? button("Close", () => close(done), "primary", { autofocus: true }) : button("Cancel", () => { stopped = true; update(); }, "", { disabled: stopped })));
  }).then((value) => { stopped = true; return value; }); // a dialog that is closed stops the work
}

export function options(values) {
  const found = {};
  for (const name in values) {
    const text = String(values[name]).trim();
    if (text === "") continue;
    try {
      found[name] = JSON.parse(text);
    } catch {
      found[name] = text;
    }
  }
  return found;
}
