import { h } from "../dom.js";
import { get } from "../api.js";
import { n, span, Time } from "../format.js";
import { Card, Empty, Field, Head, Table } from "../ui.js";

const CSS = { running: "leased", success: "ok", failed: "dead", stale: "dead", cancelled: "waiting", new: "ready", failed_redelivered: "waiting" };
const micros = (value) => (value ? new Date(value / 1000).toISOString() : null);
const State = ({ status }) => h("span", { class: `state ${CSS[status] || ""}` }, status.replace("_", " "));

// Jobs and schedules are keyed values of the worker package.
export default {
  title: () => "Jobs and schedules",
  live: true,
  async load(ctx, signal) {
    const [jobs, schedules, leases] = await Promise.all([
      get("/v1/values", { prefix: "jobs/root/", descending: true, limit: 100, after: ctx.query.after }, signal),
      get("/v1/values", { prefix: "schedules/", limit: 200 }, signal), get("/v1/leases", { limit: 500 }, signal)]);
    const workers = new Map();
    for (const one of leases.items) {
      const known = workers.get(one.consumer) || { consumer: one.consumer, leases: 0, held: 0, queues: new Set(), since: one.acquired_at };
      known.leases++;
      known.held += one.held;
      known.queues.add(one.queue);
      workers.set(one.consumer, known);
    }
    return { jobs, schedules, workers: [...workers.values()] };
  },
  view(ctx, data) {
    const status = ctx.query.status;
    const jobs = data?.jobs.filter((one) => !status || one.data.status === status);
    const total = (one) => Object.values(one.data.counts).reduce((sum, value) => sum + value, 0);
    return h("div", null, h(Head, { title: "Jobs and schedules" }),
      h(Card, { title: "At work" }, h(Table, { caption: "Consumers that hold messages", rowKey: (row) => row.consumer, rows: data?.workers, columns: [
        { label: "Consumer", css: "main-cell", cell: (row) => h("a", { href: `#/leases?consumer=${encodeURIComponent(row.consumer)}` }, row.consumer || "–") }, { label: "Leases", num: true, cell: (row) => n(row.leases) },
        { label: "Messages", num: true, cell: (row) => h("span", { class: "num leased" }, n(row.held)) }, { label: "Queues", cell: (row) => [...row.queues].slice(0, 4).join(", ") }, { label: "Longest since", css: "nowrap", cell: (row) => h(Time, { at: row.since, ago: true }) }],
      empty: h(Empty, { title: "Nothing is being processed" }, "Start a worker: ", h("code", null, "ackflow work module")) })),
      h(Card, { title: "Jobs", actions: h(Field, { label: "Status", value: status || "", options: [["", "Any"], "new", "running", "success", "failed", "failed_redelivered", "cancelled", "stale"], onChange: (event) => ctx.setQuery({ status: event.target.value }) }) },
        h(Table, { caption: "Root jobs, the newest first", rowKey: (row) => row.key, rows: jobs, columns: [
          { label: "Job", css: "main-cell", cell: (row) => row.data.name }, { label: "Status", cell: (row) => h(State, row.data) },
          { label: "Progress", cell: (row) => h("span", { class: "badges" }, h("progress", { max: 1, value: row.data.progress, "aria-label": `Progress of ${row.data.name}`, style: { width: "90px" } }), `${Math.round(row.data.progress * 100)} %`) },
          { label: "Children", num: true, hide: "hide-s", cell: (row) => n(total(row)) }, { label: "Failed", num: true, hide: "hide-s", cell: (row) => n(row.data.counts.failed || 0) },
          { label: "Created", css: "nowrap", hide: "hide-m", cell: (row) => h(Time, { at: micros(row.data.created_at), ago: true }) },
          { label: "Took", num: true, hide: "hide-m", cell: (row) => (row.data.stopped_at && row.data.started_at ? span((row.data.stopped_at - row.data.started_at) / 1e6) : "–") }],
        empty: h(Empty, { title: status ? "No job has this status" : "No jobs" }, "Jobs group the messages of a larger task, with progress and an end.") })),
      h(Card, { title: "Schedules" }, h(Table, { caption: "Schedules", rowKey: (row) => row.key, rows: data?.schedules, columns: [
        { label: "Schedule", css: "main-cell", cell: (row) => row.key.replace("schedules/", "") }, { label: "When", cell: (row) => String(row.data.spec ?? "") },
        { label: "Last tick", css: "nowrap", cell: (row) => h(Time, { at: row.data.at ? (typeof row.data.at === "number" ? micros(row.data.at) : row.data.at) : row.updated_at, ago: true }) }],
      empty: h(Empty, { title: "No schedules" }, "A worker with schedules records each tick here.") })));
  },
};
