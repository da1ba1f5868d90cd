import { h } from "../dom.js";
import { del, get, patchTo, post, queuePath, seg } from "../api.js";
import { n, short, span, plural, Time, groupName } from "../format.js";
import { Badge, Button, Card, Count, Field, Foot, Head, Stat, Table, app, confirm, dialog, link, may, run } from "../ui.js";
import { crumbs, editOptions, optionFacts } from "./queue.js";

const path = (ctx, rest = "") => queuePath(ctx.params[0], `/groups/${seg(ctx.params[1])}${rest}`);

// Where to move the group, with a preview of what that would do.
function seek(ctx) {
  const [queue, group] = ctx.params;
  const given = { to: "start", at: "", sequence: "", partition: "" };
  let preview = null, problem = "";
  const query = () => ({
    to: given.to === "time" ? (given.at ? new Date(given.at) / 1000 : "") : given.to === "sequence" ? given.sequence : given.to,
    time: given.to === "time" ? "true" : "", partition: given.partition,
  });
  return dialog(`Move ${groupName(group)}`, (close, update) => {
    const change = (name) => (event) => { given[name] = event.target.value; preview = null; problem = ""; update(); };
    const look = async () => {
      try {
        preview = await get(path(ctx, "/seek"), query());
      } catch (error) {
        problem = error.message;
      }
      update();
    };
    return h("form", { onSubmit: async (event) => {
      event.preventDefault();
      if (!preview) return look();
      close(await run(() => post(path(ctx, "/seek"), {}, query()), "The group is moved"));
    } },
    h(Field, { label: "To", value: given.to, autofocus: true, options: [["start", "The start of the queue"], ["end", "The end: skip all stored messages"], ["time", "A time"], ["sequence", "A sequence of each lane"]], onChange: change("to") }),
    given.to === "time" ? h(Field, { label: "Pushed since", type: "datetime-local", required: true, value: given.at, onInput: change("at") }) : null,
    given.to === "sequence" ? h(Field, { label: "Sequence", inputmode: "numeric", required: true, value: given.sequence, onInput: change("sequence") }) : null,
    h(Field, { label: "Only this partition", placeholder: "all", value: given.partition, onInput: change("partition") }),
    preview ? h("p", { class: "banner warn", role: "status" }, preview.partial ? "At least: " : "", `${plural(preview.again, "message")} delivered again, ${n(preview.skipped)} skipped, ${n(preview.leased)} taken from leases, in ${plural(preview.lanes, "lane")}.`) : null,
    h("p", { class: "problem", role: "alert" }, problem),
    h("footer", null, h(Button, { onClick: () => close() }, "Cancel"), preview ? h(Button, { type: "submit", kind: "danger" }, `Move ${groupName(group)} of ${queue}`) : h(Button, { type: "submit", kind: "primary" }, "Preview")));
  });
}

async function remove(ctx) {
  const [queue, group] = ctx.params;
  if (!await confirm(`Delete ${groupName(group)}`, { text: `Deletes the group with its position, leases and dead letters. Messages of ${queue} that only this group has not settled stay until they are trimmed.`, button: `Delete group ${groupName(group)}` })) return;
  if (await run(() => del(path(ctx)), "The group is deleted")) app.go(link.queue(queue));
}

export default {
  title: ([queue, group]) => `${groupName(group)} of ${queue}`,
  live: true,
  async load(ctx, signal) {
    const [queue, group] = ctx.params;
    const [page, partitions] = await Promise.all([get(queuePath(queue), { group }, signal), get(path(ctx, "/partitions"), { after: ctx.query.after, limit: 100 }, signal)]);
    return { row: page.groups.find((one) => one.group === group), details: page.details.groups.find((one) => one.name === group), partitions };
  },
  view(ctx, data) {
    const [queue, group] = ctx.params;
    const row = data?.row, details = data?.details;
    const write = may("read-write", queue);
    const paused = details?.paused;
    return h("div", null, h(Head, { title: groupName(group), crumbs: crumbs(queue), badge: paused ? h(Badge, null, "paused") : null },
      details && write ? [h(Button, { onClick: () => run(() => post(queuePath(queue, "/pause"), { paused: !paused, group }), paused ? "The group gets messages again" : "The group is paused") }, paused ? "Resume" : "Pause"), h(Button, { onClick: () => seek(ctx) }, "Seek")] : null,
      details && may("admin", queue) ? h(Button, { kind: "danger", onClick: () => remove(ctx) }, "Delete") : null),
    h("div", { class: "stats" }, h(Stat, { label: "Ready", value: short(row?.ready), css: "ready" }), h(Stat, { label: "Leased", value: short(row?.leased), css: "leased" }), h(Stat, { label: "Waiting", value: short(row?.waiting), css: "waiting" }),
      h(Stat, { label: "Dead letters", value: short(row?.dead), css: row?.dead ? "dead" : "" }), h(Stat, { label: "Lag", value: short(row?.lag) }), h(Stat, { label: "Delivered", value: short(row?.delivered) }),
      h(Stat, { label: "Failed/expired", value: `${short(row?.failed)} / ${short(row?.leases_expired)}`, title: "Failures, and leases that expired" }), h(Stat, { label: "Oldest ready", css: "time", value: row?.oldest_seconds ? span(row.oldest_seconds) : "–" })),
      h(Card, { title: "Partitions" }, h(Table, { caption: "Progress by partition", rowKey: (one) => one.partition, rows: data?.partitions.items, columns: [
        { label: "Partition", css: "main-cell", cell: (one) => h("a", { href: link.queue(queue, `/messages?partition=${seg(one.partition)}&group=${seg(group)}`) }, one.partition) },
        { label: "Position", num: true, hide: "hide-m", cell: (one) => one.positions.map((at) => h("div", { key: at.priority }, `${n(at.next)} of ${n(at.end)}`, one.positions.length > 1 || at.priority ? h("small", null, `, priority ${at.priority}`) : null)) },
        { label: "Lag", num: true, cell: (one) => h(Count, { value: one.lag }) }, { label: "Ready", num: true, hide: "hide-s", cell: (one) => h(Count, { value: one.ready }) }, { label: "Leased", num: true, cell: (one) => h(Count, { value: one.leased, css: "leased" }) },
        { label: "Waiting", num: true, cell: (one) => h(Count, { value: one.waiting, css: "waiting" }) }, { label: "Dead", num: true, hide: "hide-s", cell: (one) => h(Count, { value: one.dead, css: "dead" }) },
        { label: "Done", num: true, hide: "hide-s", cell: (one) => n(one.done) }, { label: "Last delivery", num: true, hide: "hide-m", cell: (one) => h(Time, { at: one.last_at, ago: true }) }] }),
      h(Foot, { ctx, text: h("a", { href: `#/leases?queue=${seg(queue)}&group=${seg(group)}` }, "Leases of this group"), next: data?.partitions.next })),
      details ? h(Card, { title: "Settings", actions: write ? h(Button, { kind: "small", onClick: () => editOptions(`Settings of ${groupName(group)}`, ["ordering", "policy", "lease_seconds", "retry_limit", "max_deliver", "backoff", "max_ack_pending"], details.settings, (changes) => patchTo(path(ctx), { options: changes })) }, "Edit") : null },
        h("div", { class: "pad" }, optionFacts(details.settings, details.settings), h("p", null, h("small", null, `${details.dialect} dialect, created `, h(Time, { at: details.created_at }), ".")))) : null);
  },
};
