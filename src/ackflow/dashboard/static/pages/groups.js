import { h } from "../dom.js";
import { get } from "../api.js";
import { n } from "../format.js";
import { Button, Card, Empty, Field, Head, Table, link } from "../ui.js";
import { groupColumns } from "./queue.js";

export default {
  title: () => "Groups",
  live: true,
  load: (ctx, signal) => get("/v1/groups", { filter: ctx.query.filter, after: ctx.query.after, limit: 100 }, signal),
  view(ctx, data) {
    const start = Number(ctx.query.after || 0);
    return h("div", null, h(Head, { title: "Groups" }), h(Card, null,
      h("div", { class: "filters" }, h(Field, { label: "Group or queue", type: "search", value: ctx.query.filter || "", onInput: (event) => {
        clearTimeout(ctx.state.typing);
        const text = event.target.value;
        ctx.state.typing = setTimeout(() => ctx.setQuery({ filter: text, after: "" }), 200);
      } })),
      h(Table, { caption: "Groups, those most behind first", rowKey: (row) => `${row.queue}\n${row.group}`, rows: data?.items,
        columns: [groupColumns[0], { label: "Queue", cell: (row) => h("a", { href: link.queue(row.queue) }, row.queue) }, ...groupColumns.slice(1)],
        empty: h(Empty, { title: ctx.query.filter ? "No group fits" : "No groups yet", icon: "groups" }, "A group is an independent reader of a queue. It begins with its first pop.") }),
      h("div", { class: "foot" }, h("span", null, data ? `${n(data.total)} groups, most behind first` : "Reading"), h("div", { class: "actions" },
        h(Button, { kind: "small", disabled: !start, onClick: () => ctx.setQuery({ after: start > 100 ? start - 100 : "" }) }, "Previous"),
        h(Button, { kind: "small", disabled: !data?.next, onClick: () => ctx.setQuery({ after: data.next }) }, "Next")))));
  },
};
