import { h } from "../dom.js";
import { get, post, queuePath } from "../api.js";
import { n, plural, Time, groupName } from "../format.js";
import { Badge, Button, Card, Empty, Head, Table, bulk, confirm, form, link, may } from "../ui.js";
import { seg } from "../api.js";

// Redrive or purge a selection in steps, after a dry run that says how many there are.
export async function act(ctx, what, queue, body, scope) {
  const path = queuePath(queue, `/dead/${what}`);
  let total = 0, after = 0, more = false;
  const deadline = Date.now() + 2000;
  do {
    const step = await post(path, { ...body, after, dry_run: true });
    total += step.done;
    after = step.next;
    more = after !== null && Date.now() > deadline;
  } while (after !== null && !more);
  const found = `${more ? "more than " : ""}${plural(total, "dead letter")}`;
  let to, rate;
  if (what === "redrive") {
    const values = await form(`Redrive ${found}`, { to: { label: "To another queue", placeholder: "empty: back to where it died, for its group" }, rate: { label: "Per second at most", placeholder: "no limit", inputmode: "numeric" } },
      { text: `Dry run: ${found} ${scope}. They are delivered again with both counters at 0.`, button: `Redrive ${found}`, check: (given) => (given.rate && !(Number(given.rate) > 0) ? "The rate must be a number above 0." : "") });
    if (!values) return;
    to = values.to.trim() || null;
    rate = Number(values.rate) || undefined;
  } else if (!await confirm(`Purge ${found}`, { text: `Deletes ${found} ${scope} for good. This cannot be undone.`, button: `Purge ${found}` })) return;
  await bulk(`${what === "redrive" ? "Redriving" : "Purging"} ${found}`, more ? 0 : total,
    (next) => post(path, { ...body, after: next, to, limit: rate ? Math.max(1, Math.min(1000, Math.round(rate / 4))) : 1000 }), { rate });
  ctx.reload();
}

export default {
  title: () => "Dead letters",
  live: true,
  async load(ctx, signal) {
    const found = await get("/v1/dead", { queue: ctx.query.queue, seconds: 1 }, signal);
    if (ctx.state.more && found.next) {
      const rest = await get("/v1/dead", { queue: ctx.query.queue, before: found.next, seconds: 5 }, signal);
      const groups = new Map(found.items.map((one) => [keyOf(one), one]));
      for (const one of rest.items) {
        const known = groups.get(keyOf(one));
        known ? (known.count += one.count, known.first_at = one.first_at) : groups.set(keyOf(one), one);
      }
      return { items: [...groups.values()], scanned: found.scanned + rest.scanned, next: rest.next };
    }
    return found;
  },
  view(ctx, data) {
    const total = data?.items.reduce((sum, one) => sum + one.count, 0);
    return h("div", null, h(Head, { title: "Dead letters" }),
      h(Card, { title: data ? `${data.next ? "More than " : ""}${plural(total, "dead letter")} by error` : "By error" },
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
          empty: h(Empty, { title: "No dead letters", icon: "dead" }, "A message that fails too often, is rejected or waits too long is kept here with its reason.") }),
        data?.next ? h("div", { class: "foot" }, h("span", null, `Counted the newest ${n(data.scanned)}; there are more.`), h(Button, { kind: "small", onClick: () => { ctx.state.more = true; ctx.reload(); } }, "Count on")) : null));
  },
};
const keyOf = (one) => `${one.queue}\n${one.group}\n${one.kind}\n${one.error}`;
