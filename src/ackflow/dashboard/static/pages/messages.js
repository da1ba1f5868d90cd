import { h } from "../dom.js";
import { del, get, post, queuePath, seg } from "../api.js";
import { n, Time, groupName, initials, bytes } from "../format.js";
import { Button, Card, Empty, Field, Foot, Head, State, Table, bulk, confirm, link, may } from "../ui.js";
import { crumbs, tabs } from "./queue.js";

const STATES = [["all", "All"], ["ready", "Ready"], ["leased", "Leased"], ["waiting", "Waiting"], ["settled", "Settled"]];
const FILTERS = ["id", "transaction_id", "header", "text", "partition", "priority", "since", "until"];
const seconds = (text) => (text ? new Date(text) / 1000 : undefined);

function queryOf(query) {
  const found = { group: query.group, state: query.state, limit: 50, seconds: 1, after: query.after };
  for (const name of FILTERS) found[name] = name === "since" || name === "until" ? seconds(query[name]) : query[name];
  return found;
}

// Change the chosen messages, each with its own answer.
async function each(ctx, title, name, action) {
  const chosen = [...ctx.state.chosen];
  await bulk(title, chosen.length, async (after) => {
    const some = chosen.slice(after, after + 20);
    const failed = [];
    let done = 0;
    await Promise.all(some.map(async (id) => {
      try {
        (await action(id)).done ? done++ : failed.push([id, "nothing to do"]);
      } catch (error) {
        failed.push([id, error.message]);
      }
    }));
    return { done, failed, next: after + 20 < chosen.length ? after + 20 : null };
  });
  ctx.state.chosen.clear();
  ctx.reload();
}

export default {
  title: ([name]) => `Messages of ${name}`,
  enter: (ctx) => { ctx.state.chosen = new Set(); ctx.state.draft = null; },
  live: ({ query }) => !["id", "transaction_id", "header", "text", "after"].some((one) => query[one]), // a search is made once
  async load(ctx, signal) {
    const [name] = ctx.params;
    const page = await get(queuePath(name), {}, signal);
    const groups = page.details.groups.map((one) => one.name);
    if (ctx.query.state && ctx.query.state !== "all" && !ctx.query.group) ctx.query.group = groups[0];
    const wanted = queryOf(ctx.query);
    if (!wanted.group && groups.length) wanted.group = groups[0];
    return { groups, group: wanted.group, found: await get(queuePath(name, "/messages"), wanted, signal) };
  },
  view(ctx, data) {
    const [name] = ctx.params;
    const { query, state } = ctx;
    const draft = state.draft || (state.draft = Object.fromEntries(FILTERS.map((one) => [one, query[one] || ""])));
    const filtered = FILTERS.some((one) => query[one]);
    const field = (key, label, more) => h(Field, { label, name: key, value: draft[key], onInput: (event) => { draft[key] = event.target.value; }, ...more });
    const group = data?.group;
    const write = may("read-write", name);
    const all = state.chosen.size;
    const found = data?.found;
    return h("div", null, h(Head, { title: "Messages", crumbs: crumbs(name) },
      write ? h("a", { class: "button primary", href: link.queue(name, "/push") }, "Push a message") : null), tabs(name, "Messages"),
    h(Card, null,
      h("form", { class: "filters grid", role: "search", onSubmit: (event) => { event.preventDefault(); ctx.setQuery({ ...draft, after: "" }, false); } },
        data?.groups.length ? h(Field, { label: "Group", value: group, options: data.groups.map((one) => [one, groupName(one)]), onChange: (event) => ctx.setQuery({ group: event.target.value, after: "" }) }) : null,
        field("id", "Id or part of it"), field("transaction_id", "Transaction id"), field("header", "Header", { placeholder: "name=value" }), field("text", "Text in the payload"),
        field("partition", "Partition"), field("priority", "Priority", { inputmode: "numeric" }), field("since", "Pushed since", { type: "datetime-local" }), field("until", "Pushed before", { type: "datetime-local" }),
        h("div", { class: "actions" }, h(Button, { type: "submit", kind: "primary" }, "Search"), filtered ? h(Button, { onClick: () => { state.draft = null; ctx.setQuery(Object.fromEntries([...FILTERS, "after"].map((one) => [one, ""]))); } }, "Clear") : null)),
      h("div", { class: "filters", style: { "padding-top": "0" } }, h("div", { class: "segments", role: "group", "aria-label": `State in ${group || "any group"}` }, STATES.map(([key, label]) =>
        h("button", { type: "button", "aria-pressed": String((query.state || "all") === key), disabled: key !== "all" && !group, onClick: () => ctx.setQuery({ state: key === "all" ? "" : key, after: "", group }) }, label)),
      h("a", { href: link.dead(name) }, "Dead letters")),
      all && write ? h("div", { class: "actions" }, h("span", null, `${n(all)} selected`),
        group ? h(Button, { kind: "small", onClick: () => each(ctx, `Release ${n(all)} messages to ${groupName(group)}`, name, (id) => post(queuePath(name, `/messages/${seg(id)}/settle`), { verdict: "release", group })) }, `Release ${n(all)} selected`) : null,
        h(Button, { kind: "small danger", onClick: async () => { if (await confirm(`Delete ${n(all)} messages`, { text: "They are deleted for every group that has not settled them.", button: `Delete ${n(all)} selected` })) await each(ctx, `Delete ${n(all)} messages`, name, (id) => del(queuePath(name, `/messages/${seg(id)}`))); } }, `Delete ${n(all)} selected`)) : null),
      h(Table, { caption: `Messages of ${name}`, rowKey: (row) => row.id, rows: found?.items, selected: write ? state.chosen : null, onSelect: ctx.update,
        columns: [
          { label: "Message", css: "nowrap", cell: (row) => h("a", { class: "mono", href: link.message(name, row.id), title: row.id }, initials(row.id)) },
          { label: "State", cell: (row) => h(State, { state: row.state }) },
          { label: "Pushed", css: "nowrap", cell: (row) => h(Time, { at: row.created_at }) },
          { label: "Partition", hide: "hide-m", cell: (row) => `${row.partition}${row.priority ? `, priority ${row.priority}` : ""}` },
          { label: "Size", num: true, hide: "hide-m", cell: (row) => bytes(row.size) },
          { label: "Payload", css: "wide", cell: (row) => h("div", { class: "payload" }, row.json ? row.payload : "(bytes)") },
        ],
        empty: found?.next ? h(Empty, { title: `Nothing among the first ${n(found.scanned)} messages` }, "The search stopped at its time limit. It can be continued below.")
          : h(Empty, { title: filtered || query.state ? "No message matches" : "No messages" }, filtered || query.state ? "Change the filters or the state." : h("pre", null, `ackflow push ${name} '{"id": 1}'`)) }),
      h(Foot, { ctx, text: found ? `${n(found.items.length)} shown, ${n(found.scanned)} searched${found.next ? "; there may be more" : ""}` : "Reading", first: "From the start", more: found?.next && !found.items.length ? "Search on" : "Next", next: found?.next })));
  },
};
