import { h } from "../dom.js";
import { get, post, queuePath, seg } from "../api.js";
import { n, plural, Time, groupName } from "../format.js";
import { Badge, Button, Card, Empty, Filter, Head, Table, bulk, confirm, form, link, may, toast } from "../ui.js";

// Redrive or purge a selection in steps, after a dry run that says how many there are.
export async function act(...given) {
  try {
    await selected(...given);
  } catch (error) {
    toast(error.message, "bad");
  }
}

async function selected(ctx, what, queue, body, scope) {
  const path = queuePath(queue, `/dead/${what}`);
  let total = 0, after = 0, more = false;
  const deadline = Date.now() + 2000;
  do {
    const step = await post(path, { ...body, after, dry_run: true });
    total += step.done;
    after = step.next;
    more = after !== null && Date.now() > deadline;
  } while (after !== null && !more);
  if (!total && !more) return toast(`There are no dead letters ${scope}`, "bad");
  const found = `${more ? "more than " : ""}${plural(total, "dead letter")}`;
  let to, rate;
  if (what === "redrive") {
    const values = await form(`Redrive ${found}`, { to: { label: "To another queue", placeholder: "empty: back to its group" }, rate: { label: "Per second at most", placeholder: "no limit", inputmode: "numeric" } },
      { text: `Dry run: ${found} ${scope}. They are delivered again with both counters at 0.`, button: `Redrive ${found}`, check: (given) => (given.rate && !(Number(given.rate) > 0) ? "The rate must be a number above 0." : "") });
    if (!values) return;
    to = values.to.trim() || null;
    rate = Number(values.rate) || undefined;
  } else if (!await confirm(`Purge ${found}`, { text: `Deletes ${found} ${scope} for good. This cannot be undone.`, button: `Purge ${found}` })) return;
  const seen = new Set();
  await bulk(`${what === "redrive" ? "Redriving" : "Purging"} ${found}`, more ? 0 : total,
    async (next) => {
      const step = await post(path, { ...body, after: next, to, limit: rate ? Math.max(1, Math.min(1000, Math.round(rate / 4))) : 1000 });
      if (body.ids) step.items.forEach((id) => seen.add(id));
      return step.next === null && body.ids ? { ...step, failed: body.ids.filter((id) => !seen.has(id)).map((id) => [`Dead letter ${id}`, "it is not there any more"]) } : step;
    }, { rate });
  ctx.reload();
}

export default {
  title: () => "Dead letters",
  live: true,
  async load(ctx, signal) {
    try {
      return await get("/v1/dead", { queue: ctx.query.queue, ...(ctx.state.more ? { seconds: 5, limit: 1000000 } : { seconds: 1 }) }, signal);
    } catch (error) { // a name that is being typed
      if (error.status !== 404) throw error;
      return { items: [], scanned: 0, next: null };
    }
  },
  view(ctx, data) {
    const total = data?.items.reduce((sum, one) => sum + one.count, 0);
    return h("div", null, h(Head, { title: "Dead letters" }),
      h(Card, { title: data ? `${data.next ? "More than " : ""}${plural(total, "dead letter")} by error` : "By error" },
        h("div", { class: "filters" }, h(Filter, { ctx, name: "queue", label: "Queue", placeholder: "whole name" })),
        h(Table, { caption: "Dead letters by error", rowKey: keyOf, rows: data?.items,
          columns: [
            { label: "Error", css: "main-cell text", cell: (row) => h("a", { href: link.dead(row.queue, `?error=${seg(row.error)}&group=${seg(row.group)}&kind=${seg(row.kind)}`), title: row.example }, row.error || "(no reason given)") },
            { label: "Count", num: true, cell: (row) => h("span", { class: "num dead" }, n(row.count)) },
            { label: "Queue", cell: (row) => h("a", { href: link.queue(row.queue) }, row.queue) },
            { label: "Group", hide: "hide-m", cell: (row) => groupName(row.group) },
            { label: "Kind", hide: "hide-s", cell: (row) => h(Badge, { kind: "quiet" }, row.kind) },
            { label: "First", hide: "hide-m", css: "nowrap", cell: (row) => h(Time, { at: row.first_at, ago: true }) },
            { label: "Last", css: "nowrap", hide: "hide-s", cell: (row) => h(Time, { at: row.last_at, ago: true }) },
            { label: "", cell: (row) => h("div", { class: "actions" },
              may("read-write", row.queue) ? h(Button, { kind: "small", label: `Redrive ${n(row.count)} with error ${row.error}`, onClick: () => act(ctx, "redrive", row.queue, { group: row.group, kind: row.kind, error: row.error }, `of ${row.queue} with this error`) }, `Redrive ${n(row.count)}`) : null) },
          ],
          empty: h(Empty, { title: ctx.query.queue ? "No dead letters of this queue" : "No dead letters", icon: "dead" }, "A message that fails too often, is rejected or waits too long is kept here with its reason.") }),
        data?.next ? h("div", { class: "foot" }, h("span", null, `Counted the newest ${n(data.scanned)}; there are more.`), ctx.state.more ? null : h(Button, { kind: "small", onClick: () => { ctx.state.more = true; ctx.reload(); } }, "Count on")) : null));
  },
};
const keyOf = (one) => `${one.queue}\n${one.group}\n${one.kind}\n${one.error}`;
