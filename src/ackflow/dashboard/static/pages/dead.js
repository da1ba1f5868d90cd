import { h } from "../dom.js";
import { get, post, queuePath, seg } from "../api.js";
import { n, plural, groupName, ago } from "../format.js";
import { Card, Filter, Head, Table, badge, bulk, button, confirm, empty, form, link, may, toast } from "../ui.js";

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
        h(".filters", null, h(Filter, { ctx, name: "queue", label: "Queue", placeholder: "whole name" })),
        h(Table, { caption: "Dead letters by error", by: keyOf, rows: data?.items,
          columns: [
            ["Error", "main-cell text", (row) => h("a", { href: link.dead(row.queue, `?error=${seg(row.error)}&group=${seg(row.group)}&kind=${seg(row.kind)}`), title: row.example }, row.error || "(no reason given)")],
            ["Count", "n", (row) => h("span.num.dead", null, n(row.count))],
            ["Queue", "", (row) => h("a", { href: link.queue(row.queue) }, row.queue)],
            ["Group", "hide-m", (row) => groupName(row.group)],
            ["Kind", "hide-s", (row) => badge(row.kind, "quiet")],
            ["First", "nowrap hide-m", (row) => ago(row.first_at)],
            ["Last", "nowrap hide-s", (row) => ago(row.last_at)],
            ["", "", (row) => h(".actions", null,
              may("read-write", row.queue) && button(`Redrive ${n(row.count)}`, () => act(ctx, "redrive", row.queue, { group: row.group, kind: row.kind, error: row.error }, `of ${row.queue} with this error`), "small", { label: `Redrive ${n(row.count)} with error ${row.error}` }))],
          ],
          empty: empty(ctx.query.queue ? "No dead letters of this queue" : "No dead letters", "A message that fails too often, is rejected or waits too long is kept here with its reason.", "dead") }),
        data?.next ? h(".foot", null, h("span", null, `Counted the newest ${n(data.scanned)}; there are more.`), ctx.state.more ? null : button("Count on", () => { ctx.state.more = true; ctx.reload(); }, "small")) : null));
  },
};
const keyOf = (one) => `${one.queue}\n${one.group}\n${one.kind}\n${one.error}`;
