import { h } from "../dom.js";
import { get } from "../api.js";
import { n, short, rate, span } from "../format.js";
import { Badge, Card, Empty, Head, Table, link } from "../ui.js";

// Stages are queues with a common namespace; an edge leads to the queue that comes next in the order in
// which they were created. Counts are those of the queues.
const order = ["input", "clients", "parsed", "filter", "router", "rows", "chunks", "partials", "aggregate", "answers", "results", "final"];
const place = (name) => { const at = order.findIndex((word) => name.includes(word)); return at < 0 ? order.length : at; };

function Graph({ stages }) {
  const width = 190, gap = 46, height = 74;
  return h("div", { class: "graph", tabindex: "0", role: "region", "aria-label": "Stages" }, h("svg", { viewBox: `0 0 ${stages.length * (width + gap)} ${height + 8}`, width: stages.length * (width + gap), role: "img", "aria-label": stages.map((one) => `${one.name}: ${one.ready} ready, ${one.leased} leased`).join("; ") },
    stages.map((one, at) => [at ? h("path", { d: `M${at * (width + gap) - gap} ${height / 2}h${gap - 3}m-6 -5l6 5l-6 5` }) : null,
      h("rect", { class: "box", x: at * (width + gap) + 1, y: 1, width: width - 2, height: height - 2, rx: 9 }),
      h("text", { x: at * (width + gap) + 14, y: 25 }, one.name.split(".").slice(1).join(".") || one.name),
      h("text", { class: "small", x: at * (width + gap) + 14, y: 44 }, `${short(one.ready)} ready, ${short(one.leased)} held`),
      h("text", { class: "small", x: at * (width + gap) + 14, y: 61 }, `${rate(one.rates?.acked)} /s out`)])));
}

export default {
  title: () => "Pipelines",
  live: true,
  async load(ctx, signal) {
    const [states, queues] = await Promise.all([get("/v1/values", { prefix: "pipeline/", limit: 500 }, signal), get("/v1/queues", { filter: "*.*", limit: 1000 }, signal)]);
    const groups = new Map();
    for (const one of queues.items) {
      const name = one.name.split(".")[0];
      groups.set(name, (groups.get(name) || []).concat(one));
    }
    const known = new Set(states.map((one) => one.key.split("/")[1]));
    return [...groups].filter(([name, some]) => known.has(name) || some.length > 2).map(([name, some]) => ({ name, stages: some.sort((a, b) => place(a.name) - place(b.name)), states: states.filter((one) => one.key.split("/")[1] === name) }));
  },
  view(ctx, data) {
    return h("div", null, h(Head, { title: "Pipelines" }), data && !data.length ? h(Card, null, h(Empty, { title: "No pipelines", icon: "pipelines" }, "Queues with a common namespace, such as shop.rows and shop.answers, are shown together.", h("pre", null, "ackflow pipeline --help"))) : null,
      data?.map((one) => h(Card, { key: one.name, title: one.name }, h(Graph, one), h(Table, { caption: `Stages of ${one.name}`, rowKey: (row) => row.name, rows: one.stages, columns: [
        { label: "Queue", css: "main-cell", cell: (row) => h("a", { href: link.queue(row.name) }, row.name) }, { label: "In /s", num: true, cell: (row) => rate(row.rates?.pushed) }, { label: "Out /s", num: true, cell: (row) => rate(row.rates?.acked) },
        { label: "Ready", num: true, cell: (row) => n(row.ready) }, { label: "Held", num: true, cell: (row) => n(row.leased) }, { label: "Oldest", num: true, cell: (row) => (row.oldest_seconds ? span(row.oldest_seconds) : "–") },
        { label: "State", cell: (row) => h("div", { class: "badges" }, row.trouble.map((text) => h(Badge, { key: text }, text))) }] }))));
  },
};
