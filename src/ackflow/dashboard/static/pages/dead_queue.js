import { h } from "../dom.js";
import { get, queuePath, raw } from "../api.js";
import { n, groupName, initials, ago } from "../format.js";
import { Card, Choice, Foot, Head, Table, badge, button, empty, link, may, toast } from "../ui.js";
import { crumbs, tabs } from "./queue.js";
import { act } from "./dead.js";

const MOST = 100000;

async function exportAll(name, query) {
  const parts = [];
  let after = "0", count = 0;
  try {
    while (after) {
      const response = await raw(queuePath(name, "/dead/export"), { ...query, after });
      const text = await response.text();
      parts.push(text);
      count += text.split("\n").length - 1;
      after = response.headers.get("x-next");
      if (count >= MOST) break;
    }
  } catch (error) {
    return toast(error.message, "bad");
  }
  const file = document.createElement("a");
  file.href = URL.createObjectURL(new Blob(parts, { type: "application/x-ndjson" }));
  file.download = `${name}-dead-letters.jsonl`;
  file.click();
  setTimeout(() => URL.revokeObjectURL(file.href), 10000);
  toast(after ? `The first ${n(count)} dead letters are exported; there are more` : `${n(count)} dead letters exported`);
}

export default {
  title: ([name]) => `Dead letters of ${name}`,
  live: true,
  enter: (ctx) => { ctx.state.chosen = new Set(); },
  load: (ctx, signal) => get(queuePath(ctx.params[0], "/dead"), { group: ctx.query.group, kind: ctx.query.kind, error: ctx.query.error, after: ctx.query.after, limit: 50 }, signal),
  view(ctx, data) {
    const [name] = ctx.params;
    const { query, state } = ctx;
    const chosen = [...state.chosen];
    const body = { group: query.group || null, kind: query.kind || null, error: query.error || null };
    const narrowed = query.error || query.kind || query.group;
    const scope = narrowed ? `of ${name} that match the filter` : `of ${name}`;
    const write = may("read-write", name), admin = may("admin", name);
    const done = () => { state.chosen.clear(); };
    return h("div", null, h(Head, { title: "Dead letters", crumbs: [...crumbs(name), ["Dead letters", "#/dead"]] },
      button(narrowed ? "Export matches" : "Export all", () => exportAll(name, body)),
      write && button(narrowed ? "Redrive matches" : `Redrive all of ${name}`, () => act(ctx, "redrive", name, body, scope), "primary"),
      admin && button(narrowed ? "Purge matches" : `Purge all of ${name}`, () => act(ctx, "purge", name, body, scope), "danger")),
    tabs(name, "Dead letters"),
    query.error != null && query.error !== "" && h("p.banner.info", null, "Only with the error ", h("code", null, query.error), ". ", h("a", { href: link.dead(name) }, "Show all")),
    h(Card, null,
      h(".filters", null,
        h(Choice, { ctx, name: "kind", label: "Kind", options: ["Any", "failed", "max_deliver", "rejected", "max_wait"] }),
        chosen.length ? h(".actions", null, h("span", null, `${n(chosen.length)} selected`),
          write && button(`Redrive ${n(chosen.length)} selected`, () => act(ctx, "redrive", name, { ids: chosen }, "that are selected").then(done), "small"),
          admin && button(`Purge ${n(chosen.length)} selected`, () => act(ctx, "purge", name, { ids: chosen }, "that are selected").then(done), "small danger")) : null),
      h(Table, { caption: `Dead letters of ${name}`, by: "id", rows: data?.items, selected: write ? state.chosen : null, onSelect: ctx.update,
        columns: [
          ["Message", "nowrap", (row) => h("a.mono", { href: link.message(name, row.message_id), title: row.message_id }, initials(row.message_id))],
          ["Reason", "main-cell text", (row) => row.reason || row.error || "no reason given"],
          ["Kind", "", (row) => badge(row.kind, "quiet")],
          ["Group", "hide-m", (row) => groupName(row.group)],
          ["Died", "nowrap", (row) => ago(row.died_at)],
          ["Deliveries", "n hide-l", (row) => n(row.deliveries)],
          ["Failures", "n hide-m", (row) => n(row.failures)],
          ["Payload", "wide hide-l", (row) => h(".payload", null, row.json ? row.payload : "(bytes)")],
        ],
        empty: empty(narrowed ? "No dead letter matches" : "No dead letters", narrowed ? h("a", { href: link.dead(name) }, "Show all") : "This queue has no dead letters.", "dead") }),
      h(Foot, { ctx, text: data ? `${n(data.items.length)} shown` : "Reading", next: data?.next })));
  },
};
