import { h } from "../dom.js";
import { get, post, queuePath } from "../api.js";
import { n } from "../format.js";
import { Card, Choice, Filter, Foot, Head, Table, app, button, count, empty, form, link, may, run } from "../ui.js";
import { queueColumns, troubleColumn } from "./overview.js";

const LIMIT = 100;

export function pauseQueue(name, paused) {
  return run(() => post(queuePath(name, "/pause"), { paused }), paused ? `${name} is paused: nothing is delivered, pushes continue` : `${name} delivers again`);
}

async function newQueue() {
  const values = await form("New queue", { name: { label: "Name", required: true, hint: "Names with dots, such as orders.eu, can be granted together: orders.*" } }, { button: "Create" });
  if (!values) return;
  const { patchTo } = await import("../api.js");
  if (await run(() => patchTo(queuePath(values.name), { options: {} }), `Queue ${values.name} exists`)) app.go(link.queue(values.name));
}

export default {
  title: () => "Queues",
  live: true,
  load: (ctx, signal) => get("/v1/queues", { filter: ctx.query.filter, sort: ctx.query.sort || "name", descending: ctx.query.descending, show: ctx.query.show, after: ctx.query.after, limit: LIMIT, sparks: true }, signal),
  view(ctx, data) {
    const { query } = ctx;
    const start = Number(query.after || 0);
    const columns = [...queueColumns.slice(0, 1), troubleColumn, ...queueColumns.slice(1),
      ["Lag", "n hide-l", (row) => count(row.lag), "lag"],
      ["Failed", "n hide-l", (row) => h("span", { class: row.failed ? "num" : "num zero" }, n(row.failed)), "failed"],
      ["", "", (row) => (may("read-write", row.name) && button(row.paused ? "Resume" : "Pause", () => pauseQueue(row.name, !row.paused), "small", { label: `${row.paused ? "Resume" : "Pause"} ${row.name}` }))]];
    const filtered = query.filter || query.show;
    return h("div", null, h(Head, { title: "Queues" }, may("read-write") && button("New queue", newQueue, "primary")),
      h(Card, null,
        h(".filters", null,
          h(Filter, { ctx, name: "filter", label: "Name", placeholder: "Part of a name, or orders.*" }),
          h(Choice, { ctx, name: "show", label: "Show", options: ["All queues", ["busy", "With messages"], ["trouble", "In trouble"]] })),
        h(Table, { caption: "Queues", columns, rows: data?.items, sort: query.sort || "name", descending: query.descending === "true",
          onSort: (sort, descending) => ctx.setQuery({ sort, descending: descending ? "true" : "", after: "" }),
          empty: filtered ? empty("No queue matches", h("a", { href: "#/queues" }, "Show all queues"))
            : empty("No queues yet", h("pre", null, "ackflow push orders '{\"id\": 1}'"), "queues") }),
        h(Foot, { ctx, text: data ? (data.total ? `${n(start + 1)} to ${n(start + data.items.length)} of ${n(data.total)}` : "None") : "Reading", back: start ? Math.max(0, start - LIMIT) : null, next: data?.next })));
  },
};
