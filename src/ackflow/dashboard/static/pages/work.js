import { h } from "../dom.js";
import { get, post, seg } from "../api.js";
import { n, plural, span, Time } from "../format.js";
import { Badge, Button, Card, Empty, Field, Foot, Head, Table, confirm, may, run } from "../ui.js";

const CSS = { running: "leased", success: "ok", failed: "dead", stale: "dead", cancelled: "waiting", new: "ready", failed_redelivered: "waiting" };
const State = ({ status }) => h("span", { class: `state ${CSS[status] || ""}` }, status.replaceAll("_", " "));
const Bar = (row) => h("span", { class: "badges" }, h("progress", { max: 1, value: row.progress, "aria-label": `Progress of ${row.name}` }), `${Math.round(row.progress * 100)} %`);
const took = (row) => (row.started_at ? span((new Date(row.stopped_at || Date.now()) - new Date(row.started_at)) / 1000) : "–");

async function interrupt(job) {
  if (await confirm(`Interrupt ${job.name}`, { text: `Children of ${job.name} that have not started are cancelled; running ones continue.`, button: `Interrupt ${job.name}` })) {
    await run(() => post(`/v1/jobs/${seg(job.id)}/interrupt`), `${job.name} is interrupted`);
  }
}

const pause = (one) => run(() => post(`/v1/schedules/${seg(one.name)}/pause`, { paused: !one.paused }), `${one.name} is ${one.paused ? "resumed" : "paused"}`);

const childColumns = [
  { label: "Child", css: "main-cell", cell: (row) => row.name }, { label: "Status", cell: State }, { label: "Progress", cell: Bar },
  { label: "Started", css: "nowrap", hide: "hide-s", cell: (row) => h(Time, { at: row.started_at, ago: true }) }, { label: "Took", num: true, hide: "hide-s", cell: took },
];

export default {
  title: () => "Jobs and schedules",
  live: true,
  async load(ctx, signal) {
    const { status, job, after } = ctx.query;
    const [jobs, schedules, leases, shown] = await Promise.all([
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
    return { jobs, schedules, shown, more: leases.more, workers: [...workers.values()] };
  },
  view(ctx, data) {
    const { status } = ctx.query, shown = data?.shown, write = may("read-write");
    return h("div", null, h(Head, { title: "Jobs and schedules" }),
      h(Card, { title: "At work" }, h(Table, { caption: "Consumers that hold messages", rowKey: (row) => row.consumer, rows: data?.workers, columns: [
        { label: "Consumer", css: "main-cell", cell: (row) => h("a", { href: `#/leases?consumer=${seg(row.consumer)}` }, row.consumer || "–") }, { label: "Leases", num: true, hide: "hide-s", cell: (row) => n(row.leases) },
        { label: "Messages", num: true, cell: (row) => h("span", { class: "num leased" }, n(row.held)) }, { label: "Queues", cell: (row) => [...row.queues].slice(0, 4).join(", ") }, { label: "Longest since", css: "nowrap", hide: "hide-s", cell: (row) => h(Time, { at: row.since, ago: true }) }],
      empty: h(Empty, { title: "Nothing is being processed" }, "Start a worker: ", h("code", null, "ackflow work module")) }),
      data?.more ? h("div", { class: "foot" }, "There are more leases than are shown.") : null),
      shown ? h(Card, { title: `Job ${shown.job.name}`, actions: [
        write && !shown.job.stopped_at && !shown.job.interrupted ? h(Button, { kind: "small danger", onClick: () => interrupt(shown.job) }, "Interrupt this job") : null,
        h(Button, { kind: "small", onClick: () => ctx.setQuery({ job: "" }) }, "Close job")] },
      h("div", { class: "pad badges" }, h(State, shown.job), shown.job.interrupted ? h(Badge, { kind: "info" }, "interrupted") : null, Object.entries(shown.job.children).map(([name, count]) => `${n(count)} ${name.replaceAll("_", " ")}`).join(", ")),
      h(Table, { caption: `Children of ${shown.job.name}`, rowKey: (row) => row.id, rows: shown.children, columns: childColumns }),
      shown.next ? h("div", { class: "foot" }, `The first ${n(shown.children.length)} children.`) : null) : null,
      h(Card, { title: "Jobs", actions: h(Field, { label: "Status", value: status || "", options: [["", "Any"], "new", "running", "success", "failed", "failed_redelivered", "cancelled", "stale"], onChange: (event) => ctx.setQuery({ status: event.target.value, after: "" }) }) },
        h(Table, { caption: "Root jobs, newest first", rowKey: (row) => row.id, rows: data?.jobs.items, columns: [
          { label: "Job", css: "main-cell", cell: (row) => h("a", { href: `#/work?job=${seg(row.id)}` }, row.name) },
          { label: "Status", cell: (row) => h("span", { class: "badges" }, h(State, row), row.interrupted && !row.stopped_at ? h(Badge, { kind: "info" }, "interrupted") : null) }, { label: "Progress", cell: Bar },
          { label: "Children", num: true, hide: "hide-s", cell: (row) => n(Object.values(row.children).reduce((sum, one) => sum + one, 0)) }, { label: "Failed", num: true, hide: "hide-s", cell: (row) => n(row.children.failed || 0) },
          { label: "Created", css: "nowrap", hide: "hide-m", cell: (row) => h(Time, { at: row.created_at, ago: true }) }, { label: "Took", num: true, hide: "hide-m", cell: took },
          { label: "", cell: (row) => (write && !row.stopped_at && !row.interrupted ? h("div", { class: "actions" }, h(Button, { kind: "small", label: `Interrupt ${row.name}`, onClick: () => interrupt(row) }, "Interrupt")) : null) }],
        empty: h(Empty, { title: status ? "No job has this status" : "No jobs" }, "A job groups the messages of a larger task, with progress and an end:", h("pre", null, "Jobs(session).run_unique(owner, \"import\", work)")) }),
        ctx.query.after || data?.jobs.next ? h(Foot, { ctx, text: "", first: "Newest", more: "Older", next: data?.jobs.next }) : null),
      h(Card, { title: "Schedules" }, h(Table, { caption: "Schedules", rowKey: (row) => row.name, rows: data?.schedules.items, columns: [
        { label: "Schedule", css: "main-cell", cell: (row) => row.name }, { label: "When", hide: "hide-s", cell: (row) => h("code", null, row.spec) },
        { label: "Last tick", css: "nowrap", hide: "hide-s", cell: (row) => h(Time, { at: row.last, ago: true }) },
        { label: "Next tick", css: "nowrap", cell: (row) => (row.paused ? h(Badge, { kind: "info" }, "paused") : row.next ? h(Time, { at: row.next }) : "–") },
        { label: "", cell: (row) => (write ? h("div", { class: "actions" }, h(Button, { kind: "small", label: `${row.paused ? "Resume" : "Pause"} ${row.name}`, onClick: () => pause(row) }, row.paused ? "Resume" : "Pause")) : null) }],
      empty: h(Empty, { title: "No schedules" }, "A schedule pushes a message at each of its ticks:", h("pre", null, "Schedules(session).add(\"report\", cron(\"0 2 * * *\"), queue=\"reports\")")) }),
      data?.schedules.next ? h("div", { class: "foot" }, plural(data.schedules.items.length, "schedule"), " shown; there are more.") : null));
  },
};
