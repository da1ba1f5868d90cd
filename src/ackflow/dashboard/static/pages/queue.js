import { h } from "../dom.js";
import { del, get, patchTo, post, queuePath, seg } from "../api.js";
import { n, short, rate, span, bytes, plural, ago, when } from "../format.js";
import { Card, Foot, GroupLink, Head, Table, Tabs, app, badge, badges, button, confirm, count, empty, form, link, may, options, run, segments, stat } from "../ui.js";
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
  ["Group", "main-cell", (row) => h(GroupLink, row)],
  ["", "hide-m", (row) => h(StateBar, row)],
  ["Ready", "n", (row) => count(row.ready)],
  ["Leased", "n", (row) => count(row.leased, "leased")],
  ["Waiting", "n hide-s", (row) => count(row.waiting, "waiting")],
  ["Dead", "n", (row) => count(row.dead, "dead", link.dead(row.queue))],
  ["Lag", "n hide-s", (row) => count(row.lag)],
  ["Delivered", "n hide-m", (row) => n(row.delivered)],
  ["Failed", "n hide-m", (row) => n(row.failed)],
  ["Oldest", "n hide-s", (row) => (row.oldest_seconds ? span(row.oldest_seconds) : "–")],
  ["State", "", (row) => (row.paused && badge("paused"))],
];

const laneColumns = (name) => [
  ["Partition", "main-cell", (row) => h("a", { href: link.queue(name, `/messages?partition=${seg(row.partition)}&priority=${row.priority}`) }, row.partition)],
  ["Priority", "n", (row) => n(row.priority)],
  ["Stored", "n", (row) => count(row.stored)],
  ["Sequences", "n hide-s", (row) => (row.next > row.first ? `${n(row.first)} to ${n(row.next - 1)}` : `next ${n(row.next)}`)],
  ["Oldest", "n hide-s", (row) => ago(row.oldest_at)],
  ["Last push", "n", (row) => ago(row.newest_at)],
];

const shown = (value) => (value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : value === "" ? "–" : String(value));

export function optionFacts(set, defaults) {
  return h("dl", { class: `facts ${defaults ? "two" : ""}` }, Object.keys(set).map((name) => {
    const same = defaults && JSON.stringify(set[name]) === JSON.stringify(defaults[name]);
    return [h("dt", { title: MEANING[name] }, name), h("dd", { class: same ? "default" : "" }, shown(set[name]), name.endsWith("_seconds") && set[name] >= 60 && h("small", null, ` (${span(set[name])})`), defaults && !same && h("small", null, name in defaults ? `  default ${shown(defaults[name])}` : "  for groups that set nothing else"))];
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
    const points = ctx.query.range === "day" ? 1440 : step === 60 ? 60 : 744;
    const [page, series, lanes] = await Promise.all([get(queuePath(name), {}, signal), get("/v1/series", { queue: name, step, count: points }, signal),
      get(queuePath(name, "/partitions"), { after: ctx.query.after, limit: 20 }, signal)]);
    return { ...page, series, step, lanes };
  },
  view(ctx, data) {
    const [name] = ctx.params;
    const line = data?.line, details = data?.details;
    return h("div", null,
      h(Head, { title: name, crumbs: crumbs(), badge: line && badges(line.trouble) },
        line && may("read-write", name) && button(line.paused ? "Resume" : "Pause", () => pauseQueue(name, !line.paused)),
        line && may("admin", name) && [button("Purge", () => purge(name), "danger"), button("Delete", () => remove(name), "danger")]),
      tabs(name, "Overview"),
      h(".stats", null,
        stat("Pushed", rate(line?.rates?.pushed), "", { unit: "/s" }), stat("Acknowledged", rate(line?.rates?.acked), "", { unit: "/s" }),
        stat("Ready", short(line?.ready), "ready"), stat("Leased", short(line?.leased), "leased", { href: `#/leases?queue=${seg(name)}` }),
        stat("Waiting", short(line?.waiting), "waiting"), stat("Dead letters", short(line?.dead), line?.dead ? "dead" : "", { href: link.dead(name) }),
        stat("Stored", short(details?.messages)), stat("Size", details ? `${details.more_bytes ? "> " : ""}${bytes(details.bytes)}` : "–")),
      segments("Time range", [["", "Hour"], ["day", "Day"], ["month", "Month"]], ctx.query.range || "", (range) => ctx.setQuery({ range })),
      h(".grid2", null,
        h(Card, null, h(Chart, { title: "Messages per second", items: data?.series.items, step: data?.step, lines: IN_OUT, unit: "/s" })),
        h(Card, null, h(Chart, { title: "Messages by state", items: data?.series.items, step: data?.step, lines: STATES, stacked: true }))),
      h(Card, { title: "Groups", actions: h("a", { href: `#/leases?queue=${seg(name)}` }, "Leases") },
        h(Table, { caption: `Groups of ${name}`, columns: groupColumns, rows: data?.groups, by: "group",
          empty: empty("No group reads this queue", ["Its messages are kept. A group begins with its first pop:", h("pre", null, `ackflow pop ${name}`)]) }),
        data?.more_groups && h(".foot", null, `The first ${n(data.groups.length)} groups. `, h("a", { href: `#/groups?filter=${seg(name)}` }, "All groups"))),
      h(Card, { title: "Partitions and priorities" }, h(Table, { caption: `Partitions and priorities of ${name}`, columns: laneColumns(name), rows: data?.lanes.items, by: (row) => `${row.partition}\n${row.priority}`,
        empty: empty("No partitions yet", "A partition is created by the first push to it.") }),
        ctx.query.after || data?.lanes.next ? h(Foot, { ctx, text: plural(details?.partitions, "partition"), next: data?.lanes.next }) : null),
      details && h(Card, { title: "Options", actions: may("read-write", name) && button("Edit", () => editOptions(`Options of ${name}`, Object.keys(details.defaults).concat(["lease_seconds", "retry_limit", "max_deliver", "backoff"]).filter((one, at, all) => all.indexOf(one) === at && one !== "encrypted"), details.options, (changes) => patchTo(queuePath(name), { options: changes })), "small") },
        h(".pad", null, optionFacts(details.options, details.defaults),
          h("p", null, h("small", null, "Created ", when(details.created_at), `, ${plural(details.partitions, "partition")}. Unset lease, retry and back-off options take the defaults of each group.`)))));
  },
};
