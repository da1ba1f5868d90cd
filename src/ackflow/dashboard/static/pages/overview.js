import { h } from "../dom.js";
import { get } from "../api.js";
import { n, short, rate, span, bytes, Time } from "../format.js";
import { Badge, Card, Count, Empty, Head, Stat, Table, app, link } from "../ui.js";
import { Chart, Spark } from "../charts.js";

export const IN_OUT = [
  { name: "pushed", css: "c-in", read: (one) => one.rates.pushed },
  { name: "acknowledged", css: "c-out", read: (one) => one.rates.acked },
  { name: "failed", css: "c-dead", read: (one) => one.rates.failed },
];
export const STATES = [
  { name: "ready", css: "c-ready", read: (one) => one.ready },
  { name: "leased", css: "c-leased", read: (one) => one.leased },
  { name: "waiting", css: "c-waiting", read: (one) => one.waiting },
  { name: "dead", css: "c-dead", read: (one) => one.dead },
];

export const queueColumns = [
  { label: "Queue", sort: "name", css: "main-cell", cell: (row) => h("a", { href: link.queue(row.name), title: row.name }, row.name) },
  { label: "Last hour", hide: "hide-m", cell: (row) => h(Spark, { values: row.spark, label: `Pushed to ${row.name} in the last hour` }) },
  { label: "In /s", num: true, sort: "in", hide: "hide-s", cell: (row) => rate(row.rates?.pushed) },
  { label: "Out /s", num: true, sort: "out", hide: "hide-s", cell: (row) => rate(row.rates?.acked) },
  { label: "Ready", num: true, sort: "ready", cell: (row) => h(Count, { value: row.ready }) },
  { label: "Leased", num: true, sort: "leased", hide: "hide-s", cell: (row) => h(Count, { value: row.leased, css: "leased" }) },
  { label: "Waiting", num: true, sort: "waiting", hide: "hide-m", cell: (row) => h(Count, { value: row.waiting, css: "waiting" }) },
  { label: "Dead", num: true, sort: "dead", cell: (row) => h(Count, { value: row.dead, css: "dead", href: link.dead(row.name) }) },
  { label: "Oldest", num: true, sort: "oldest", hide: "hide-s", cell: (row) => (row.oldest_seconds ? span(row.oldest_seconds) : h("span", { class: "num zero" }, "–")) },
];
export const troubleColumn = { label: "State", sort: "trouble", cell: (row) => h("div", { class: "badges" }, row.trouble.map((one) => h(Badge, { key: one }, one))) };

function health(data) {
  const late = data.health.overdue_seconds > 60;
  const low = data.storage.free_bytes != null && data.storage.free_bytes < 1 << 30;
  const fact = (name, value, css) => [h("dt", null, name), h("dd", { class: css }, value)];
  return h(Card, { title: "Health" }, h("div", { class: "pad" }, h("dl", { class: "facts" },
    fact("Database", [data.storage.places?.length ? data.storage.kind : data.health.version || data.storage.kind, data.storage.bytes == null ? "" : `, ${bytes(data.storage.bytes)}`]),
    data.storage.places?.some((one) => !one.up) ? fact("Away", data.storage.places.filter((one) => !one.up).map((one) => h(Badge, { kind: "bad" }, one.place))) : null,
    data.storage.free_bytes == null ? null : fact("Disk", low ? h(Badge, { kind: "bad" }, `only ${bytes(data.storage.free_bytes)} free`) : `${bytes(data.storage.free_bytes)} free`),
    fact("Upkeep", late ? h(Badge, { kind: "bad" }, `late by ${span(data.health.overdue_seconds)}`) : "on time"),
    fact("Delivery", data.health.paused ? h(Badge, { kind: "info" }, "paused everywhere") : "running"),
    data.health.sweeps ? fact("Running", `${n(data.health.sweeps)} seek, purge or delete`) : null,
    fact("Waiting consumers", n(data.waiting_pops)),
    fact("Server", `Ackflow ${data.version}`), fact("Up for", span(data.uptime_seconds)),
    fact("Figures of", h(Time, { at: data.at })))));
}

export default {
  title: () => "Overview",
  live: true,
  async load(ctx, signal) {
    const [data, series] = await Promise.all([get("/v1/overview", {}, signal),
      app.session.everywhere ? get("/v1/series", { step: 60, count: 60 }, signal) : null]);
    return { ...data, series };
  },
  view(ctx, data) {
    const totals = data?.totals || {};
    const none = data && totals.queues === 0;
    return h("div", null, h(Head, { title: "Overview" }),
      h("div", { class: "stats" },
        h(Stat, { label: "Pushed", value: rate(totals.rates?.pushed), unit: "/s" }),
        h(Stat, { label: "Acknowledged", value: rate(totals.rates?.acked), unit: "/s" }),
        h(Stat, { label: "Failed", value: rate(totals.rates?.failed), unit: "/s", css: totals.rates?.failed ? "dead" : "" }),
        h(Stat, { label: "Ready", value: short(totals.ready), css: "ready", href: "#/queues?sort=ready&descending=true" }),
        h(Stat, { label: "Leased", value: short(totals.leased), css: "leased", href: "#/leases" }),
        h(Stat, { label: "Waiting", value: short(totals.waiting), css: "waiting", href: "#/queues?sort=waiting&descending=true" }),
        h(Stat, { label: "Dead letters", value: short(totals.dead), css: totals.dead ? "dead" : "", href: "#/dead" }),
        h(Stat, { label: "Oldest ready", css: "time", value: totals.oldest_seconds ? span(totals.oldest_seconds) : "–", href: "#/queues?sort=oldest&descending=true" })),
      none ? h(Card, null, h(Empty, { title: "No queues yet", icon: "queues" }, h("p", null, "A queue is created by the first push to it:"),
        h("pre", null, "ackflow push orders '{\"id\": 1}'"))) : [
        app.session.everywhere ? h("div", { class: "grid2", key: "charts" },
          h(Card, null, h(Chart, { title: "Per second, last hour", items: data?.series?.items, step: 60, lines: IN_OUT, unit: "/s" })),
          h(Card, null, h(Chart, { title: "By state, last hour", items: data?.series?.items, step: 60, lines: STATES, stacked: true }))) : null,
        h("div", { class: "split", key: "tables" },
          h(Card, { title: "Queues in trouble", actions: h("a", { href: "#/queues" }, data ? `All ${n(totals.queues)} queues` : "All queues") },
            h(Table, { caption: "Queues in trouble, worst first", rowKey: (row) => row.name, rows: data?.trouble,
              columns: [queueColumns[0], troubleColumn, ...queueColumns.slice(2, 5), ...queueColumns.slice(7)],
              empty: h(Empty, { title: "No queue is in trouble" }, "Nothing is dead, stalled, failing or paused.") })),
          h("div", { class: "stack" }, health(data || { storage: {}, health: {} }))),
        h(Card, { title: "Busiest queues", key: "busy" }, h(Table, { caption: "Busiest queues", rowKey: (row) => row.name, rows: data?.busiest, columns: queueColumns })),
      ]);
  },
};
