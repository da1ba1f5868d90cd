import { h } from "../dom.js";
import { get, post, queuePath, seg } from "../api.js";
import { n, plural, Time } from "../format.js";
import { Button, Card, Count, Empty, Filter, GroupLink, Head, Table, confirm, form, link, may, run } from "../ui.js";

async function release(row) {
  if (!await confirm("Release lease", { text: `${row.consumer} loses ${plural(row.held, "message")} of ${row.queue}; they can be delivered to others at once, and the delivery is not counted. The work of ${row.consumer} on them is lost.`, button: `Release ${plural(row.held, "message")}` })) return;
  await run(() => post(queuePath(row.queue, `/leases/${row.token}/release`)), (result) => `${plural(result.done, "message")} released`);
}

async function extend(row) {
  const values = await form("Extend lease", { seconds: { label: "Seconds from now", value: "300", inputmode: "numeric", required: true } }, { button: "Extend" });
  if (values) await run(() => post(queuePath(row.queue, `/leases/${row.token}/extend`), { seconds: Number(values.seconds) }), "Extended");
}

export default {
  title: () => "Leases",
  live: true,
  load: (ctx, signal) => get("/v1/leases", { queue: ctx.query.queue, group: ctx.query.group, consumer: ctx.query.consumer, limit: 200 }, signal),
  view(ctx, data) {
    const field = (name, label, placeholder) => h(Filter, { ctx, name, label, placeholder });
    return h("div", null, h(Head, { title: "Leases" }), h(Card, null,
      h("div", { class: "filters" }, field("queue", "Queue", "whole name"), field("group", "Group", "whole name"), field("consumer", "Consumer", "part of a name")),
      h(Table, { caption: "Live leases", rowKey: (row) => row.token, rows: data?.items, columns: [
        { label: "Consumer", css: "main-cell", cell: (row) => row.consumer || "–" }, { label: "Queue", cell: (row) => h("a", { href: link.queue(row.queue) }, row.queue) },
        { label: "Group", hide: "hide-m", cell: (row) => h(GroupLink, row) }, { label: "Holds", num: true, cell: (row) => h(Count, { value: row.held, css: "leased", href: link.queue(row.queue, `/messages?state=leased&group=${seg(row.group)}`) }) }, { label: "Of", num: true, hide: "hide-m", cell: (row) => n(row.batch) },
        { label: "Partitions", hide: "hide-m", cell: (row) => (row.partitions.length > 2 ? plural(row.partitions.length, "partition") : row.partitions.join(", ")) },
        { label: "Since", css: "nowrap", hide: "hide-s", cell: (row) => h(Time, { at: row.acquired_at, ago: true }) }, { label: "Until", css: "nowrap", cell: (row) => h(Time, { at: row.expires_at, ago: true }) },
        { label: "", cell: (row) => (may("read-write", row.queue) ? h("div", { class: "actions" }, h(Button, { kind: "small", label: `Extend the lease of ${row.consumer}`, onClick: () => extend(row) }, "Extend"), h(Button, { kind: "small danger", label: `Release the lease of ${row.consumer}`, onClick: () => release(row) }, "Release")) : null) }],
      empty: h(Empty, { title: ctx.query.queue || ctx.query.group || ctx.query.consumer ? "No lease matches" : "Nothing is leased", icon: "leases" }, "A lease shows which consumer works on which messages, and until when.") }),
      h("div", { class: "foot" }, h("span", null, data ? `${data.more ? "More than " : ""}${plural(data.items.length, "lease")}` : "Reading"))));
  },
};
