import { h } from "../dom.js";
import { get } from "../api.js";
import { n, short, rate, span, bytes, ago, when } from "../format.js";
import { Card, Head, Table, app, badge, badges, count, empty, link, stat } from "../ui.js";
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
  ["Queue", "main-cell", (row) => h("a", { href: link.queue(row.name), title: row.name }, row.name), "name"],
  ["Last hour", "hide-m", (row) => h(Spark, { values: row.spark, label: `Pushed to ${row.name} in the last hour` })],
  ["In /s", "n hide-s", (row) => rate(row.rates?.pushed), "in"],
  ["Out /s", "n hide-s", (row) => rate(row.rates?.acked), "out"],
  ["Ready", "n", (row) => count(row.ready), "ready"],
  ["Leased", "n hide-s", (row) => count(row.leased, "leased"), "leased"],
  ["Waiting", "n hide-m", (row) => count(row.waiting, "waiting"), "waiting"],
  ["Dead", "n", (row) => count(row.dead, "dead", link.dead(row.name)), "dead"],
  ["Oldest", "n hide-s", (row) => (row.oldest_seconds ? span(row.oldest_seconds) : h("span.num.zero", null, "–")), "oldest"],
];
export const troubleColumn = ["State", "", (row) => badges(row.trouble), "trouble"];

const brokerColumns = [
  ["Broker", "main-cell", (row) => row.program],
  ["Process", "", (row) => `${row.host}, ${row.pid}`],
  ["Version", "hide-s", (row) => row.version],
  ["Since", "nowrap", (row) => ago(row.started_at)],
  ["Last seen", "nowrap hide-s", (row) => ago(row.seen_at)],
  ["", "hide-s", (row) => row.upkeep && badge("runs upkeep")],
];

function health(data) {
  const late = data.health.overdue_seconds > 60;
  const low = data.storage.free_bytes != null && data.storage.free_bytes < 1 << 30;
  const fact = (name, value, css) => [h("dt", null, name), h("dd", { class: css }, value)];
  return h(Card, { title: "Health" }, h(".pad", null, h("dl.facts", null,
    fact("Database", [data.storage.places?.length ? data.storage.kind : data.health.version || data.storage.kind, data.storage.bytes == null ? "" : `, ${bytes(data.storage.bytes)}`]),
    data.storage.places?.some((one) => !one.up) && fact("Away", data.storage.places.filter((one) => !one.up).map((one) => badge(one.place, "bad"))),
    data.storage.free_bytes == null ? null : fact("Disk", low ? badge(`only ${bytes(data.storage.free_bytes)} free`, "bad") : `${bytes(data.storage.free_bytes)} free`),
    fact("Upkeep", late ? badge(`late by ${span(data.health.overdue_seconds)}`, "bad") : "on time"),
    fact("Delivery", data.health.paused ? badge("paused everywhere", "info") : "running"),
    data.health.sweeps ? fact("Running", `${n(data.health.sweeps)} seek, purge or delete`) : null,
    data.brokers?.length > 0 && fact("Brokers", n(data.brokers.length)), fact("Waiting consumers", n(data.waiting_pops)),
    fact("Server", `Ackflow ${data.version}`), fact("Up for", span(data.uptime_seconds)),
    fact("Figures of", when(data.at)))));
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
      h(".stats", null,
        stat("Pushed", rate(totals.rates?.pushed), "", { unit: "/s" }),
        stat("Acknowledged", rate(totals.rates?.acked), "", { unit: "/s" }),
        stat("Failed", rate(totals.rates?.failed), totals.rates?.failed ? "dead" : "", { unit: "/s" }),
        stat("Ready", short(totals.ready), "ready", { href: "#/queues?sort=ready&descending=true" }),
        stat("Leased", short(totals.leased), "leased", { href: "#/leases" }),
        stat("Waiting", short(totals.waiting), "waiting", { href: "#/queues?sort=waiting&descending=true" }),
        stat("Dead letters", short(totals.dead), totals.dead ? "dead" : "", { href: "#/dead" }),
        stat("Oldest ready", totals.oldest_seconds ? span(totals.oldest_seconds) : "–", "time", { href: "#/queues?sort=oldest&descending=true" })),
      none ? h(Card, null, empty("No queues yet", [h("p", null, "A queue is created by the first push to it:"), h("pre", null, "ackflow push orders '{\"id\": 1}'")], "queues")) : [
        app.session.everywhere && h(".grid2", { key: "charts" },
          h(Card, null, h(Chart, { title: "Per second, last hour", items: data?.series?.items, step: 60, lines: IN_OUT, unit: "/s" })),
          h(Card, null, h(Chart, { title: "By state, last hour", items: data?.series?.items, step: 60, lines: STATES, stacked: true }))),
        h(".split", { key: "tables" },
          h(Card, { title: "Queues in trouble", actions: h("a", { href: "#/queues" }, data ? `All ${n(totals.queues)} queues` : "All queues") },
            h(Table, { caption: "Queues in trouble, worst first", rows: data?.trouble,
              columns: [queueColumns[0], troubleColumn, ...queueColumns.slice(2, 5), ...queueColumns.slice(7)],
              empty: empty("No queue is in trouble", "Nothing is dead, stalled, failing or paused.") })),
          h(".stack", null, health(data || { storage: {}, health: {} }))),
        h(Card, { title: "Busiest queues", key: "busy" }, h(Table, { caption: "Busiest queues", rows: data?.busiest, columns: queueColumns })),
        app.session.everywhere && h(Card, { title: "Brokers", key: "brokers" }, h(Table, { caption: "Processes that have the database open", rows: data?.brokers, columns: brokerColumns, empty: empty("No brokers yet", "A process is listed two seconds after it has opened the database.") })),
      ]);
  },
};
