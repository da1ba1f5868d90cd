import { h } from "../dom.js";
import { get, post, queuePath, seg } from "../api.js";
import { n, plural, ago } from "../format.js";
import { Card, Filter, GroupLink, Head, Table, button, confirm, count, empty, form, link, may, run } from "../ui.js";

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
      h(".filters", null, field("queue", "Queue", "whole name"), field("group", "Group", "whole name"), field("consumer", "Consumer", "part of a name")),
      h(Table, { caption: "Live leases", by: "token", rows: data?.items, columns: [
        ["Consumer", "main-cell", (row) => row.consumer || "–"], ["Queue", "", (row) => h("a", { href: link.queue(row.queue) }, row.queue)],
        ["Group", "hide-m", (row) => h(GroupLink, row)], ["Holds", "n", (row) => count(row.held, "leased", link.queue(row.queue, `/messages?state=leased&group=${seg(row.group)}`))], ["Of", "n hide-m", (row) => n(row.batch)],
        ["Partitions", "hide-m", (row) => (row.partitions.length > 2 ? plural(row.partitions.length, "partition") : row.partitions.join(", "))],
        ["Since", "nowrap hide-s", (row) => ago(row.acquired_at)], ["Until", "nowrap", (row) => ago(row.expires_at)],
        ["", "", (row) => (may("read-write", row.queue) && h(".actions", null, button("Extend", () => extend(row), "small", { label: `Extend the lease of ${row.consumer}` }), button("Release", () => release(row), "small danger", { label: `Release the lease of ${row.consumer}` })))]],
      empty: empty(ctx.query.queue || ctx.query.group || ctx.query.consumer ? "No lease matches" : "Nothing is leased", "A lease shows which consumer works on which messages, and until when.", "leases") }),
      h(".foot", null, h("span", null, data ? `${data.more ? "More than " : ""}${plural(data.items.length, "lease")}` : "Reading"))));
  },
};
