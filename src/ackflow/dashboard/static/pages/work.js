import { h } from "../dom.js";
import { get, post, seg } from "../api.js";
import { QUEUE_MODE, n, plural, span, ago, when } from "../format.js";
import { Card, Choice, Foot, Head, Table, badge, button, confirm, count, empty, link, may, run } from "../ui.js";

const CSS = { running: "leased", success: "ok", failed: "dead", stale: "dead", cancelled: "waiting", new: "ready", failed_redelivered: "waiting" };
const State = ({ status }) => h("span", { class: `state ${CSS[status] || ""}` }, status.replaceAll("_", " "));
const Bar = (row) => h("span.badges", null, h("progress", { max: 1, value: row.progress, "aria-label": `Progress of ${row.name}` }), `${Math.round(row.progress * 100)} %`);
const took = (row) => (row.started_at ? span((new Date(row.stopped_at || Date.now()) - new Date(row.started_at)) / 1000) : "–");

async function interrupt(job) {
  if (await confirm(`Interrupt ${job.name}`, { text: `Children of ${job.name} that have not started are cancelled; running ones continue.`, button: `Interrupt ${job.name}` })) {
    await run(() => post(`/v1/jobs/${seg(job.id)}/interrupt`), `${job.name} is interrupted`);
  }
}

const pause = (one) => run(() => post(`/v1/schedules/${seg(one.name)}/pause`, { paused: !one.paused }), `${one.name} is ${one.paused ? "resumed" : "paused"}`);

const childColumns = [
  ["Child", "main-cell", (row) => row.name], ["Status", "", State], ["Progress", "", Bar],
  ["Started", "nowrap hide-s", (row) => ago(row.started_at)], ["Took", "n hide-s", took],
];

const doing = (row) => (row.busy ? row.running.slice(0, 3).map((one) => h("div", { key: one.message_id }, h("a", { href: link.message(one.queue, one.message_id), title: one.message_id }, one.handler), h("div", null, h("small", null, "begun ", ago(one.since)))))
  .concat(row.busy > 3 ? h("small", null, `and ${n(row.busy - 3)} more`) : []) : row.reason ? badge("stopping", "info") : h("small", null, "waiting for messages"));
const workerColumns = [
  ["Worker", "main-cell", (row) => [h("a", { href: `#/leases?consumer=${seg(row.consumer)}` }, row.consumer), h("div", null, h("small", null, `${row.host}, process ${row.pid}, ${row.version}`))]],
  ["Serves", "text", (row) => row.queues.slice(0, 5).map((one) => h("div", { key: `${one.queue}/${one.group}` }, h("a", { href: link.group(one.queue, one.group) }, one.group === QUEUE_MODE ? one.queue : `${one.queue}/${one.group}`), h("div", null, h("small", null, one.handlers.join(", ")))))
    .concat(row.queues.length > 5 ? h("small", null, `and ${n(row.queues.length - 5)} more`) : [])],
  ["Does now", "text", doing],
  ["At a time", "n hide-m", (row) => n(row.concurrency)],
  ["Done", "n hide-s", (row) => n(row.acked)],
  ["Failed", "n", (row) => count(row.failed + row.rejected, "dead")],
  ["Started", "nowrap hide-m", (row) => ago(row.started_at)],
  ["Last seen", "nowrap hide-m", (row) => ago(row.seen_at)],
];

export default {
  title: () => "Workers and jobs",
  live: true,
  async load(ctx, signal) {
    const { status, job, after } = ctx.query;
    const [running, jobs, schedules, leases, shown] = await Promise.all([get("/v1/workers", {}, signal),
      get("/v1/jobs", { status, after, limit: 50 }, signal), get("/v1/schedules", { limit: 200 }, signal),
      get("/v1/leases", { limit: 500 }, signal), job ? get(`/v1/jobs/${seg(job)}`, { limit: 200 }, signal) : null]);
    const workers = new Map();
    for (const one of leases.items) {
      const known = workers.get(one.consumer) || { consumer: one.consumer, leases: 0, held: 0, queues: new Set(), since: one.acquired_at };
      known.leases++;
      known.held += one.held;
      known.queues.add(one.queue);
      workers.set(one.consumer, known);
    }
    return { running, jobs, schedules, shown, more: leases.more, workers: [...workers.values()] };
  },
  view(ctx, data) {
    const { status } = ctx.query, shown = data?.shown, write = may("read-write");
    return h("div", null, h(Head, { title: "Workers and jobs" }),
      h(Card, { title: "Workers" }, h(Table, { caption: "Running workers", by: "id", rows: data?.running, columns: workerColumns,
        empty: empty("No worker runs", ["Start one: ", h("code", null, "ackflow work module:worker")]) })),
      h(Card, { title: "Leases by consumer" }, h(Table, { caption: "Consumers that hold messages", by: "consumer", rows: data?.workers, columns: [
        ["Consumer", "main-cell", (row) => h("a", { href: `#/leases?consumer=${seg(row.consumer)}` }, row.consumer || "–")], ["Leases", "n hide-s", (row) => n(row.leases)],
        ["Messages", "n", (row) => h("span.num.leased", null, n(row.held))], ["Queues", "", (row) => [...row.queues].slice(0, 4).join(", ")], ["Longest since", "nowrap hide-s", (row) => ago(row.since)]],
      empty: empty("Nothing is leased", "Consumers that are not workers are listed here as well, while they hold messages.") }),
      data?.more && h(".foot", null, "There are more leases than are shown.")),
      shown && h(Card, { title: `Job ${shown.job.name}`, actions: [
        write && !shown.job.stopped_at && !shown.job.interrupted && button("Interrupt this job", () => interrupt(shown.job), "small danger"),
        button("Close job", () => ctx.setQuery({ job: "" }), "small")] },
      h(".pad.badges", null, h(State, shown.job), shown.job.interrupted && badge("interrupted", "info"), Object.entries(shown.job.children).map(([name, count]) => `${n(count)} ${name.replaceAll("_", " ")}`).join(", ")),
      h(Table, { caption: `Children of ${shown.job.name}`, by: "id", rows: shown.children, columns: childColumns }),
      shown.next ? h(".foot", null, `The first ${n(shown.children.length)} children.`) : null),
      h(Card, { title: "Jobs", actions: h(Choice, { ctx, name: "status", label: "Status", options: ["Any", "new", "running", "success", "failed", "failed_redelivered", "cancelled", "stale"] }) },
        h(Table, { caption: "Root jobs, newest first", by: "id", rows: data?.jobs.items, columns: [
          ["Job", "main-cell", (row) => h("a", { href: `#/work?job=${seg(row.id)}` }, row.name)],
          ["Status", "", (row) => h("span.badges", null, h(State, row), row.interrupted && !row.stopped_at && badge("interrupted", "info"))], ["Progress", "", Bar],
          ["Children", "n hide-s", (row) => n(Object.values(row.children).reduce((sum, one) => sum + one, 0))], ["Failed", "n hide-s", (row) => n(row.children.failed || 0)],
          ["Created", "nowrap hide-m", (row) => ago(row.created_at)], ["Took", "n hide-m", took],
          ["", "", (row) => (write && !row.stopped_at && !row.interrupted && h(".actions", null, button("Interrupt", () => interrupt(row), "small", { label: `Interrupt ${row.name}` })))]],
        empty: empty(status ? "No job has this status" : "No jobs", ["A job groups the messages of a larger task, with progress and an end:", h("pre", null, "Jobs(session).run_unique(owner, \"import\", work)")]) }),
        ctx.query.after || data?.jobs.next ? h(Foot, { ctx, text: "", first: "Newest", more: "Older", next: data?.jobs.next }) : null),
      h(Card, { title: "Schedules" }, h(Table, { caption: "Schedules", rows: data?.schedules.items, columns: [
        ["Schedule", "main-cell", (row) => row.name], ["When", "hide-s", (row) => h("code", null, row.spec)],
        ["Last tick", "nowrap hide-s", (row) => ago(row.last)],
        ["Next tick", "nowrap", (row) => (row.paused ? badge("paused", "info") : row.next ? when(row.next) : "–")],
        ["", "", (row) => (write && h(".actions", null, button(row.paused ? "Resume" : "Pause", () => pause(row), "small", { label: `${row.paused ? "Resume" : "Pause"} ${row.name}` })))]],
      empty: empty("No schedules", ["A schedule pushes a message at each of its ticks:", h("pre", null, "Schedules(session).add(\"report\", cron(\"0 2 * * *\"), queue=\"reports\")")]) }),
      data?.schedules.next ? h(".foot", null, plural(data.schedules.items.length, "schedule"), " shown; there are more.") : null));
  },
};
