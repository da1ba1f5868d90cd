import { h } from "../dom.js";
import { get } from "../api.js";
import { plural } from "../format.js";
import { Card, Filter, Foot, Head, Table, empty, link } from "../ui.js";
import { groupColumns } from "./queue.js";

export default {
  title: () => "Groups",
  live: true,
  load: (ctx, signal) => get("/v1/groups", { filter: ctx.query.filter, after: ctx.query.after, limit: 100 }, signal),
  view(ctx, data) {
    const start = Number(ctx.query.after || 0);
    return h("div", null, h(Head, { title: "Groups" }), h(Card, null,
      h(".filters", null, h(Filter, { ctx, name: "filter", label: "Group or queue" })),
      h(Table, { caption: "Groups, most behind first", by: (row) => `${row.queue}\n${row.group}`, rows: data?.items,
        columns: [groupColumns[0], ["Queue", "", (row) => h("a", { href: link.queue(row.queue) }, row.queue)], ...groupColumns.slice(1)],
        empty: empty(ctx.query.filter ? "No group matches" : "No groups yet", ["A group is an independent reader of a queue. It begins with its first pop:", h("pre", null, "ackflow pop orders --group billing")], "groups") }),
      h(Foot, { ctx, text: data ? `${plural(data.total, "group")}, most behind first` : "Reading", back: start ? Math.max(0, start - 100) : null, next: data?.next })));
  },
};
