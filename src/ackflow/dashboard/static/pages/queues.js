import { h } from "../dom.js";
import { get, post, queuePath } from "../api.js";
import { n } from "../format.js";
import { Button, Card, Count, Empty, Field, Filter, Foot, Head, Table, app, form, link, may, run } from "../ui.js";
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
      { label: "Lag", num: true, sort: "lag", hide: "hide-l", cell: (row) => h(Count, { value: row.lag }) },
      { label: "Failed", num: true, sort: "failed", hide: "hide-l", cell: (row) => h("span", { class: row.failed ? "num" : "num zero" }, n(row.failed)) },
      { label: "", cell: (row) => (may("read-write", row.name) ? h(Button, { kind: "small", label: `${row.paused ? "Resume" : "Pause"} ${row.name}`, onClick: () => pauseQueue(row.name, !row.paused) }, row.paused ? "Resume" : "Pause") : null) }];
    const filtered = query.filter || query.show;
    return h("div", null, h(Head, { title: "Queues" }, may("read-write") ? h(Button, { kind: "primary", onClick: newQueue }, "New queue") : null),
      h(Card, null,
        h("div", { class: "filters" },
          h(Filter, { ctx, name: "filter", label: "Name", placeholder: "Part of a name, or orders.*" }),
          h(Field, { label: "Show", value: query.show || "all", options: [["all", "All queues"], ["busy", "With messages"], ["trouble", "In trouble"]], onChange: (event) => ctx.setQuery({ show: event.target.value === "all" ? "" : event.target.value, after: "" }) })),
        h(Table, { caption: "Queues", columns, rows: data?.items, rowKey: (row) => row.name, sort: query.sort || "name", descending: query.descending === "true",
          onSort: (sort, descending) => ctx.setQuery({ sort, descending: descending ? "true" : "", after: "" }),
          empty: filtered ? h(Empty, { title: "No queue matches" }, h("a", { href: "#/queues" }, "Show all queues"))
            : h(Empty, { title: "No queues yet", icon: "queues" }, h("pre", null, "ackflow push orders '{\"id\": 1}'")) }),
        h(Foot, { ctx, text: data ? (data.total ? `${n(start + 1)} to ${n(start + data.items.length)} of ${n(data.total)}` : "None") : "Reading", back: start ? Math.max(0, start - LIMIT) : null, next: data?.next })));
  },
};
