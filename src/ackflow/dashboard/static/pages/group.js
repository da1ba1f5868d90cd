import { h } from "../dom.js";
import { del, get, patchTo, post, queuePath, seg } from "../api.js";
import { n, short, span, plural, groupName, ago, when } from "../format.js";
import { Card, Field, Foot, Head, Table, app, badge, button, confirm, count, dialog, link, may, run, stat, submit } from "../ui.js";
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
    given.to === "time" && h(Field, { label: "Pushed since", type: "datetime-local", required: true, value: given.at, onInput: change("at") }),
    given.to === "sequence" && h(Field, { label: "Sequence", inputmode: "numeric", required: true, value: given.sequence, onInput: change("sequence") }),
    h(Field, { label: "Only this partition", placeholder: "all", value: given.partition, onInput: change("partition") }),
    preview && h("p.banner.warn", { role: "status" }, preview.partial ? "At least: " : "", `${plural(preview.again, "message")} delivered again, ${n(preview.skipped)} skipped, ${n(preview.leased)} taken from leases, in ${plural(preview.lanes, "lane")}.`),
    h("p.problem", { role: "alert" }, problem),
    h("footer", null, button("Cancel", () => close()), preview ? submit(`Move ${groupName(group)} of ${queue}`, "danger") : submit("Preview")));
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
    return h("div", null, h(Head, { title: groupName(group), crumbs: crumbs(queue), badge: paused && badge("paused") },
      details && write && [button(paused ? "Resume" : "Pause", () => run(() => post(queuePath(queue, "/pause"), { paused: !paused, group }), paused ? "The group gets messages again" : "The group is paused")), button("Seek", () => seek(ctx))],
      details && may("admin", queue) && button("Delete", () => remove(ctx), "danger")),
    h(".stats", null, stat("Ready", short(row?.ready), "ready"), stat("Leased", short(row?.leased), "leased"), stat("Waiting", short(row?.waiting), "waiting"),
      stat("Dead letters", short(row?.dead), row?.dead ? "dead" : ""), stat("Lag", short(row?.lag)), stat("Delivered", short(row?.delivered)),
      stat("Failed/expired", `${short(row?.failed)} / ${short(row?.leases_expired)}`, "", { title: "Failures, and leases that expired" }), stat("Oldest ready", row?.oldest_seconds ? span(row.oldest_seconds) : "–", "time")),
      h(Card, { title: "Partitions" }, h(Table, { caption: "Progress by partition", by: "partition", rows: data?.partitions.items, columns: [
        ["Partition", "main-cell", (one) => h("a", { href: link.queue(queue, `/messages?partition=${seg(one.partition)}&group=${seg(group)}`) }, one.partition)],
        ["Position", "n hide-m", (one) => one.positions.map((at) => h("div", { key: at.priority }, `${n(at.next)} of ${n(at.end)}`, (one.positions.length > 1 || at.priority) && h("small", null, `, priority ${at.priority}`)))],
        ["Lag", "n", (one) => count(one.lag)], ["Ready", "n hide-s", (one) => count(one.ready)], ["Leased", "n", (one) => count(one.leased, "leased")],
        ["Waiting", "n", (one) => count(one.waiting, "waiting")], ["Dead", "n hide-s", (one) => count(one.dead, "dead")],
        ["Done", "n hide-s", (one) => n(one.done)], ["Last delivery", "n hide-m", (one) => ago(one.last_at)]] }),
      h(Foot, { ctx, text: h("a", { href: `#/leases?queue=${seg(queue)}&group=${seg(group)}` }, "Leases of this group"), next: data?.partitions.next })),
      details && h(Card, { title: "Settings", actions: write && button("Edit", () => editOptions(`Settings of ${groupName(group)}`, ["ordering", "policy", "lease_seconds", "retry_limit", "max_deliver", "backoff", "max_ack_pending"], details.settings, (changes) => patchTo(path(ctx), { options: changes })), "small") },
        h(".pad", null, optionFacts(details.settings, details.settings), h("p", null, h("small", null, `${details.dialect} dialect, created `, when(details.created_at), ".")))));
  },
};
