import { h } from "../dom.js";
import { get } from "../api.js";
import { when } from "../format.js";
import { Card, Foot, Head, Table, empty, link } from "../ui.js";

export default {
  title: () => "Audit",
  live: true,
  load: (ctx, signal) => get("/v1/audit", { before: ctx.query.before, limit: 100 }, signal),
  view(ctx, data) {
    const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
    return h("div", null, h(Head, { title: "Audit" }), h(Card, null, h(Table, { caption: "Changes, newest first", by: "id", rows: data, columns: [
      ["When", "nowrap", (row) => when(row.at)], ["Who", "", (row) => row.who || h("span.num.zero", null, "no token")], ["From", "hide-s", (row) => h("code", null, row.origin)],
      ["What", "main-cell", (row) => row.action], ["Queue", "", (row) => (row.queue ? h("a", { href: link.queue(row.queue) }, row.queue) : "–")],
      ["Details", "wide hide-s", (row) => h("small", null, Object.entries(row.details).map(([name, value]) => `${name}: ${text(value)}`).join(", "))]],
    empty: empty("No changes yet", "Every change over HTTP, or by the command line on the database, is listed here with its author, time and address. Messages that programs push and settle are not listed.", "audit") }),
    h(Foot, { ctx, text: "", name: "before", first: "Newest", more: "Older", next: data?.length < 100 ? null : data?.at(-1).id })));
  },
};
