import { h } from "../dom.js";
import { del, get, patchTo, post, queuePath } from "../api.js";
import { n, short, rate, span, bytes, plural, Time } from "../format.js";
import { Badge, Button, Card, Count, Empty, Foot, GroupLink, Head, Stat, Table, Tabs, app, confirm, form, link, may, options, run } from "../ui.js";
import { Chart, StateBar } from "../charts.js";
import { IN_OUT, STATES } from "./overview.js";
import { pauseQueue } from "./queues.js";

export const tabs = (name, at) => h(Tabs, { at, items: [["Overview", link.queue(name)], ["Messages", link.queue(name, "/messages")], ["Dead letters", link.dead(name)], ["Tail", link.queue(name, "/tail")], ["Push", link.queue(name, "/push")]] });
export const crumbs = (name) => [["Queues", "#/queues"], ...(name ? [[name, link.queue(name)]] : [])];

const MEANING = {
  lease_seconds: "Lease of a delivery, in seconds", retry_limit: "Failures until a message dies", max_deliver: "Deliveries until a message dies",
  backoff: "Pauses after failures, in seconds: [1, 10, 60]", history_seconds: "How long the history of a delivery is kept", delay_seconds: "Delay of every push",
  max_wait_seconds: "Dies if not delivered within", retention_seconds: "Removed after, read or not", keep_seconds: "Kept after all groups have settled",
  dedup_seconds: "A transaction id is known for", namespace: "Namespace", task: "Task", max_size: "Messages at most", ttl_seconds: "Removed if unread after",
  window_seconds: "Delivered once quiet for", priority: "Priority among queues", encrypted: "Payloads are encrypted",
  ordering: "shared, ordered or exclusive", policy: "explicit, all or none", max_ack_pending: "Leased at most", start: "all or new",
};

export const groupColumns = [
  { label: "Group", css: "main-cell", cell: (row) => h(GroupLink, row) },
  { label: "", hide: "hide-m", cell: (row) => h(StateBar, row) },
  { label: "Ready", num: true, cell: (row) => h(Count, { value: row.ready }) },
  { label: "Leased", num: true, cell: (row) => h(Count, { value: row.leased, css: "leased" }) },
  { label: "Waiting", num: true, hide: "hide-s", cell: (row) => h(Count, { value: row.waiting, css: "waiting" }) },
  { label: "Dead", num: true, cell: (row) => h(Count, { value: row.dead, css: "dead", href: link.dead(row.queue) }) },
  { label: "Lag", num: true, hide: "hide-s", cell: (row) => h(Count, { value: row.lag }) },
  { label: "Delivered", num: true, hide: "hide-m", cell: (row) => n(row.delivered) },
  { label: "Failed", num: true, hide: "hide-m", cell: (row) => n(row.failed) },
  { label: "Oldest", num: true, hide: "hide-s", cell: (row) => (row.oldest_seconds ? span(row.oldest_seconds) : "–") },
  { label: "State", cell: (row) => (row.paused ? h(Badge, null, "paused") : null) },
];

const laneColumns = (name) => [
  { label: "Partition", css: "main-cell", cell: (row) => h("a", { href: link.queue(name, `/messages?partition=${encodeURIComponent(row.partition)}&priority=${row.priority}`) }, row.partition) },
  { label: "Priority", num: true, cell: (row) => n(row.priority) },
  { label: "Stored", num: true, cell: (row) => h(Count, { value: row.stored }) },
  { label: "Sequences", num: true, hide: "hide-s", cell: (row) => (row.next > row.first ? `${n(row.first)} to ${n(row.next - 1)}` : `next ${n(row.next)}`) },
  { label: "Oldest", num: true, hide: "hide-s", cell: (row) => h(Time, { at: row.oldest_at, ago: true }) },
  { label: "Last push", num: true, cell: (row) => h(Time, { at: row.newest_at, ago: true }) },
];

const shown = (value) => (value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : value === "" ? "–" : String(value));

export function optionFacts(set, defaults) {
  return h("dl", { class: `facts ${defaults ? "two" : ""}` }, Object.keys(set).map((name) => {
    const same = defaults && JSON.stringify(set[name]) === JSON.stringify(defaults[name]);
    return [h("dt", { title: MEANING[name] }, name), h("dd", { class: same ? "default" : "" }, shown(set[name]), name.endsWith("_seconds") && set[name] >= 60 ? h("small", null, ` (${span(set[name])})`) : null, defaults && !same ? h("small", null, name in defaults ? `  default ${shown(defaults[name])}` : "  for groups that set nothing else") : null)];
  }));
}

export async function editOptions(title, names, set, save) {
  const fields = Object.fromEntries(names.map((name) => [name, { label: name, hint: MEANING[name], value: set[name] === undefined ? "" : typeof set[name] === "string" ? set[name] : JSON.stringify(set[name]) }]));
  const values = await form(title, fields, { text: "Empty fields do not change; null removes a limit." });
  if (!values) return;
  const given = options(values);
  const changed = Object.fromEntries(Object.entries(given).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(set[name])));
  if (Object.keys(changed).length) await run(() => save(changed), "Options saved");
}

async function purge(name) {
  if (await confirm(`Purge ${name}`, { text: `Removes every message of ${name}, for all groups, delivered or not. Dead letters stay. This cannot be undone.`, button: `Purge all messages of ${name}`, type: name })) {
    await run(() => post(queuePath(name, "/purge"), {}), (result) => `${n(result.done)} messages removed`);
  }
}

async function remove(name) {
  if (await confirm(`Delete ${name}`, { text: `Deletes the queue ${name} with its messages, groups and dead letters. Leases on its messages end.`, button: `Delete queue ${name}`, type: name })) {
    if (await run(() => del(queuePath(name)), `Queue ${name} is deleted`)) app.go("#/queues");
  }
}

export default {
  title: ([name]) => name,
  live: true,
  async load(ctx, signal) {
    const [name] = ctx.params;
    const step = ctx.query.range === "month" ? 3600 : 60;
    const count = ctx.query.range === "day" ? 1440 : step === 60 ? 60 : 744;
    const [page, series, lanes] = await Promise.all([get(queuePath(name), {}, signal), get("/v1/series", { queue: name, step, count }, signal),
      get(queuePath(name, "/partitions"), { after: ctx.query.after, limit: 20 }, signal)]);
    return { ...page, series, step, lanes };
  },
  view(ctx, data) {
    const [name] = ctx.params;
    const line = data?.line, details = data?.details;
    const range = ctx.query.range || "hour";
    return h("div", null,
      h(Head, { title: name, crumbs: crumbs(), badge: line ? h("span", { class: "badges" }, line.trouble.map((one) => h(Badge, { key: one }, one))) : null },
        line && may("read-write", name) ? h(Button, { onClick: () => pauseQueue(name, !line.paused) }, line.paused ? "Resume" : "Pause") : null,
        line && may("admin", name) ? [h(Button, { kind: "danger", onClick: () => purge(name) }, "Purge"), h(Button, { kind: "danger", onClick: () => remove(name) }, "Delete")] : null),
      tabs(name, "Overview"),
      h("div", { class: "stats" },
        h(Stat, { label: "Pushed", value: rate(line?.rates?.pushed), unit: "/s" }), h(Stat, { label: "Acknowledged", value: rate(line?.rates?.acked), unit: "/s" }),
        h(Stat, { label: "Ready", value: short(line?.ready), css: "ready" }), h(Stat, { label: "Leased", value: short(line?.leased), css: "leased", href: `#/leases?queue=${encodeURIComponent(name)}` }),
        h(Stat, { label: "Waiting", value: short(line?.waiting), css: "waiting" }), h(Stat, { label: "Dead letters", value: short(line?.dead), css: line?.dead ? "dead" : "", href: link.dead(name) }),
        h(Stat, { label: "Stored", value: short(details?.messages) }), h(Stat, { label: "Size", value: details ? `${details.more_bytes ? "> " : ""}${bytes(details.bytes)}` : "–" })),
      h("div", { class: "segments", role: "group", "aria-label": "Time range" }, [["hour", "Hour"], ["day", "Day"], ["month", "Month"]].map(([key, label]) =>
        h("button", { type: "button", "aria-pressed": String(range === key), onClick: () => ctx.setQuery({ range: key === "hour" ? "" : key }) }, label))),
      h("div", { class: "grid2" },
        h(Card, null, h(Chart, { title: "Messages per second", items: data?.series.items, step: data?.step, lines: IN_OUT, unit: "/s" })),
        h(Card, null, h(Chart, { title: "Messages by state", items: data?.series.items, step: data?.step, lines: STATES, stacked: true }))),
      h(Card, { title: "Groups", actions: h("a", { href: `#/leases?queue=${encodeURIComponent(name)}` }, "Leases") },
        h(Table, { caption: `Groups of ${name}`, columns: groupColumns, rows: data?.groups, rowKey: (row) => row.group,
          empty: h(Empty, { title: "No group reads this queue" }, "Its messages are kept. A group begins with its first pop:", h("pre", null, `ackflow pop ${name}`)) }),
        data?.more_groups ? h("div", { class: "foot" }, `The first ${n(data.groups.length)} groups. `, h("a", { href: `#/groups?filter=${encodeURIComponent(name)}` }, "All groups")) : null),
      h(Card, { title: "Partitions and priorities" }, h(Table, { caption: `Partitions and priorities of ${name}`, columns: laneColumns(name), rows: data?.lanes.items, rowKey: (row) => `${row.partition}\n${row.priority}`,
        empty: h(Empty, { title: "No partitions yet" }, "A partition is created by the first push to it.") }),
        ctx.query.after || data?.lanes.next ? h(Foot, { ctx, text: plural(details?.partitions, "partition"), next: data?.lanes.next }) : null),
      details ? h(Card, { title: "Options", actions: may("read-write", name) ? h(Button, { kind: "small", onClick: () => editOptions(`Options of ${name}`, Object.keys(details.defaults).concat(["lease_seconds", "retry_limit", "max_deliver", "backoff"]).filter((one, at, all) => all.indexOf(one) === at && one !== "encrypted"), details.options, (changes) => patchTo(queuePath(name), { options: changes })) }, "Edit") : null },
        h("div", { class: "pad" }, optionFacts(details.options, details.defaults),
          h("p", null, h("small", null, "Created ", h(Time, { at: details.created_at }), `, ${plural(details.partitions, "partition")}. Unset lease, retry and back-off options take the defaults of each group.`)))) : null);
  },
};
