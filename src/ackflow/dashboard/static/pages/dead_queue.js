import { h } from "../dom.js";
import { get, queuePath, raw } from "../api.js";
import { n, Time, groupName, initials } from "../format.js";
import { Badge, Button, Card, Empty, Field, Foot, Head, Table, link, may, toast } from "../ui.js";
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
      h(Button, { onClick: () => exportAll(name, body) }, narrowed ? "Export matches" : "Export all"),
      write ? h(Button, { kind: "primary", onClick: () => act(ctx, "redrive", name, body, scope) }, narrowed ? "Redrive matches" : `Redrive all of ${name}`) : null,
      admin ? h(Button, { kind: "danger", onClick: () => act(ctx, "purge", name, body, scope) }, narrowed ? "Purge matches" : `Purge all of ${name}`) : null),
    tabs(name, "Dead letters"),
    query.error != null && query.error !== "" ? h("p", { class: "banner info" }, "Only with the error ", h("code", null, query.error), ". ", h("a", { href: link.dead(name) }, "Show all")) : null,
    h(Card, null,
      h("div", { class: "filters" },
        h(Field, { label: "Kind", value: query.kind || "", options: [["", "Any"], "failed", "max_deliver", "rejected", "max_wait"], onChange: (event) => ctx.setQuery({ kind: event.target.value, after: "" }) }),
        chosen.length ? h("div", { class: "actions" }, h("span", null, `${n(chosen.length)} selected`),
          write ? h(Button, { kind: "small", onClick: () => act(ctx, "redrive", name, { ids: chosen }, "that are selected").then(done) }, `Redrive ${n(chosen.length)} selected`) : null,
          admin ? h(Button, { kind: "small danger", onClick: () => act(ctx, "purge", name, { ids: chosen }, "that are selected").then(done) }, `Purge ${n(chosen.length)} selected`) : null) : null),
      h(Table, { caption: `Dead letters of ${name}`, rowKey: (row) => row.id, rows: data?.items, selected: write ? state.chosen : null, onSelect: ctx.update,
        columns: [
          { label: "Message", css: "nowrap", cell: (row) => h("a", { class: "mono", href: link.message(name, row.message_id), title: row.message_id }, initials(row.message_id)) },
          { label: "Reason", css: "main-cell text", cell: (row) => row.reason || row.error || "no reason given" },
          { label: "Kind", cell: (row) => h(Badge, { kind: "quiet" }, row.kind) },
          { label: "Group", hide: "hide-m", cell: (row) => groupName(row.group) },
          { label: "Died", css: "nowrap", cell: (row) => h(Time, { at: row.died_at, ago: true }) },
          { label: "Deliveries", num: true, hide: "hide-l", cell: (row) => n(row.deliveries) },
          { label: "Failures", num: true, hide: "hide-m", cell: (row) => n(row.failures) },
          { label: "Payload", hide: "hide-l", css: "wide", cell: (row) => h("div", { class: "payload" }, row.json ? row.payload : "(bytes)") },
        ],
        empty: h(Empty, { title: narrowed ? "No dead letter matches" : "No dead letters", icon: "dead" }, narrowed ? h("a", { href: link.dead(name) }, "Show all") : "This queue has no dead letters.") }),
      h(Foot, { ctx, text: data ? `${n(data.items.length)} shown` : "Reading", next: data?.next })));
  },
};
