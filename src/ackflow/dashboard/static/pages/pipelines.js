import { h } from "../dom.js";
import { get } from "../api.js";
import { n, plural, short, rate, span, ago } from "../format.js";
import { Card, Head, Table, badge, empty, link, stat } from "../ui.js";

// Boxes from left to right: [title, lines, address, css]; the last one lies below the arrow to it.
function Graph({ name, boxes, bad }) {
  const width = 176, gap = 40, height = 76, step = width + gap;
  const box = ([title, lines, href, css], x, y) => h("g", null, h("rect", { class: `box ${css || ""}`, x: x + 1, y: y + 1, width: width - 2, height: height - 2, rx: 9 }),
    h("text", { x: x + 14, y: y + 26 }, href ? h("a", { href }, title) : title), lines.map((line, at) => h("text.small", { x: x + 14, y: y + 45 + 16 * at }, line)));
  return h(".graph", { tabindex: "0", role: "region", "aria-label": `Stages of ${name}` },
    h("svg", { viewBox: `0 0 ${boxes.length * step - gap} ${2 * height + 30}`, width: boxes.length * step - gap, role: "group", "aria-label": boxes.map(([title, lines]) => `${title}: ${lines.join(", ")}`).join("; ") },
      boxes.map((one, at) => [at ? h("path", { d: `M${at * step - gap} ${height / 2}h${gap - 3}m-6 -5l6 5l-6 5` }) : null, box(one, at * step, 0)]),
      h("path", { d: `M${2 * step + width / 2} ${height}v26m-5 -6l5 6l5 -6` }), box(bad, 2 * step, height + 28)));
}

const sum = (rows, name) => rows.reduce((total, one) => total + one[name], 0);
const alarm = (row) => row.state.startsWith("ALARM");

function Pipeline(ctx, one) {
  const [inbox, ends, bad] = one.queues;
  const rows = sum(one.tables, "rows"), blocks = sum(one.tables, "blocks"), held = sum(one.tables, "held");
  const before = ctx.state[one.name];
  const now = performance.now();
  if (!before || now - before.at > 1500) ctx.state[one.name] = { at: now, rows, speed: before ? Math.max(0, (rows - before.rows) * 1000 / (now - before.at)) : null };
  const { speed } = ctx.state[one.name];
  const finished = Object.keys(one.finished).length;
  const alarms = one.tables.filter(alarm);
  const queue = (row, text) => [row.name, [`${short(row.ready)} ready, ${short(row.leased)} held`, text], link.queue(row.name)];
  const last = one.recoveries.at(-1);
  return h(Card, { key: one.name, title: one.name, actions: one.ui && h("code", { title: "Address of Spark's own pages" }, one.ui) },
    alarms.length ? h("p.banner.bad", { role: "alert" }, `${plural(alarms.length, "table")} in alarm: `, alarms.map((row) => `${row.client}/${row.table}: ${row.state.replace("ALARM: ", "")}`).join("; ")) : null,
    h(".stats", null, stat("Rows folded", short(rows)), stat("Rows now", speed == null ? "–" : rate(speed), "", { unit: "/s" }),
      stat("Blocks in", rate(inbox.rates?.pushed), "", { unit: "/s" }), stat("Blocks folded", rate(inbox.rates?.acked), "", { unit: "/s" }),
      stat("EOF messages held", n(held), alarms.length ? "dead" : held ? "leased" : ""), stat("Clients finished", `${n(finished)} of ${n(Math.max(one.clients, finished))}`),
      stat("Recoveries", n(one.recoveries.length), "", { title: last ? `The last: ${last.stage}, ${span(last.seconds)}` : "" })),
    h(Graph, { name: one.name, bad: queue(bad, `${short(bad.dead)} dead letters`), boxes: [
      ["Loaders", [plural(one.working.filter((name) => name.startsWith("worker")).length, "loader"), `${rate(inbox.rates?.pushed)} blocks/s`]],
      queue(inbox, `${short(inbox.dead)} dead letters`), ["Route", [`${short(blocks)} blocks folded`, `${short(rows)} rows`]],
      queue(ends, `${plural(held, "EOF message")} held`), ["Answers", [`${plural(finished, "client")} finished`, one.working.includes("spark") ? "Spark has started" : "Spark is not up yet"]]] }),
    h(Table, { caption: `Tables of ${one.name}`, by: (row) => `${row.client}/${row.table}`, rows: one.tables, columns: [
      ["Client", "main-cell", (row) => row.client], ["Table", "", (row) => row.table],
      ["Blocks", "n hide-s", (row) => n(row.blocks)], ["Rows", "n", (row) => n(row.rows)],
      ["EOFs held", "n", (row) => h("span", { class: row.held ? "num leased" : "num zero" }, n(row.held))],
      ["Held for", "n hide-s", (row) => (row.held ? span(row.oldest_seconds) : "–")],
      ["State", "", (row) => badge(alarm(row) ? "alarm" : row.state, alarm(row) || row.state.startsWith("failed") ? "bad" : row.held ? "info" : "quiet")]],
    empty: empty("No table has been received yet", "Blocks are counted as soon as Spark has folded the first batch.") }),
    one.recoveries.length ? h(Table, { caption: `Recoveries of ${one.name}, newest first`, by: (row) => `${row.stage}${row.at}`, rows: [...one.recoveries].reverse(), columns: [
      ["Recovered", "main-cell", (row) => row.stage], ["When", "nowrap", (row) => ago(new Date(row.at * 1000).toISOString())],
      ["After", "n", (row) => span(row.seconds)], ["Messages held", "n hide-s", (row) => n(row.held)]] }) : null);
}

export default {
  title: () => "Pipelines",
  live: true,
  load: (ctx, signal) => get("/v1/pipelines", {}, signal),
  view(ctx, data) {
    return h("div", null, h(Head, { title: "Pipelines" }),
      data && !data.length ? h(Card, null, empty("No pipelines", ["A pipeline folds the files of several clients on Spark, and answers queries for each.", h("pre", null, "ackflow pipeline run --data data --out out")], "pipelines")) : null,
      data?.map((one) => Pipeline(ctx, one)));
  },
};
