import { h } from "../dom.js";
import { get } from "../api.js";
import { Time } from "../format.js";
import { Card, Empty, Foot, Head, Table, link } from "../ui.js";

export default {
  title: () => "Audit",
  live: true,
  load: (ctx, signal) => get("/v1/audit", { before: ctx.query.before, limit: 100 }, signal),
  view(ctx, data) {
    const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
    return h("div", null, h(Head, { title: "Audit" }), h(Card, null, h(Table, { caption: "Changes, newest first", rowKey: (row) => row.id, rows: data, columns: [
      { label: "When", css: "nowrap", cell: (row) => h(Time, { at: row.at }) }, { label: "Who", cell: (row) => row.who || h("span", { class: "num zero" }, "no token") }, { label: "From", hide: "hide-s", cell: (row) => h("code", null, row.origin) },
      { label: "What", css: "main-cell", cell: (row) => row.action }, { label: "Queue", cell: (row) => (row.queue ? h("a", { href: link.queue(row.queue) }, row.queue) : "–") },
      { label: "Details", css: "wide", hide: "hide-s", cell: (row) => h("small", null, Object.entries(row.details).map(([name, value]) => `${name}: ${text(value)}`).join(", ")) }],
    empty: h(Empty, { title: "No changes yet", icon: "audit" }, "Every change over HTTP, or by the command line on the database, is listed here with its author, time and address. Messages that programs push and settle are not listed.") }),
    h(Foot, { ctx, text: "", name: "before", first: "Newest", more: "Older", next: data?.length < 100 ? null : data?.at(-1).id })));
  },
};
