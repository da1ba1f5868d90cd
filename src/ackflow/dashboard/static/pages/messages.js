import { h } from "../dom.js";
import { del, get, post, queuePath, seg } from "../api.js";
import { n, groupName, initials, bytes, when } from "../format.js";
import { Card, Field, Foot, Head, State, Table, bulk, button, confirm, empty, link, may, segments, submit } from "../ui.js";
import { crumbs, tabs } from "./queue.js";

const STATES = [["", "All"], ["ready", "Ready"], ["leased", "Leased"], ["waiting", "Waiting"], ["settled", "Settled"]];
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
      write && h("a.button.primary", { href: link.queue(name, "/push") }, "Push a message")), tabs(name, "Messages"),
    h(Card, null,
      h("form.filters.grid", { role: "search", onSubmit: (event) => { event.preventDefault(); ctx.setQuery({ ...draft, after: "" }, false); } },
        data?.groups.length ? h(Field, { label: "Group", value: group, options: data.groups.map((one) => [one, groupName(one)]), onChange: (event) => ctx.setQuery({ group: event.target.value, after: "" }) }) : null,
        field("id", "Id or part of it"), field("transaction_id", "Transaction id"), field("header", "Header", { placeholder: "name=value" }), field("text", "Text in the payload"),
        field("partition", "Partition"), field("priority", "Priority", { inputmode: "numeric" }), field("since", "Pushed since", { type: "datetime-local" }), field("until", "Pushed before", { type: "datetime-local" }),
        h(".actions", null, submit("Search"), filtered && button("Clear", () => { state.draft = null; ctx.setQuery(Object.fromEntries([...FILTERS, "after"].map((one) => [one, ""]))); }))),
      h(".filters", { style: { "padding-top": "0" } }, segments(`State in ${group || "any group"}`, STATES.map((one) => [...one, one[0] && !group]), query.state || "", (value) => ctx.setQuery({ state: value, after: "", group }), h("a", { href: link.dead(name) }, "Dead letters")),
      all && write ? h(".actions", null, h("span", null, `${n(all)} selected`),
        group && button(`Release ${n(all)} selected`, () => each(ctx, `Release ${n(all)} messages to ${groupName(group)}`, name, (id) => post(queuePath(name, `/messages/${seg(id)}/settle`), { verdict: "release", group })), "small"),
        button(`Delete ${n(all)} selected`, async () => { if (await confirm(`Delete ${n(all)} messages`, { text: "They are deleted for every group that has not settled them.", button: `Delete ${n(all)} selected` })) await each(ctx, `Delete ${n(all)} messages`, name, (id) => del(queuePath(name, `/messages/${seg(id)}`))); }, "small danger")) : null),
      h(Table, { caption: `Messages of ${name}`, by: "id", rows: found?.items, selected: write ? state.chosen : null, onSelect: ctx.update,
        columns: [
          ["Message", "nowrap", (row) => h("a.mono", { href: link.message(name, row.id), title: row.id }, initials(row.id))],
          ["State", "", (row) => h(State, { state: row.state })],
          ["Pushed", "nowrap", (row) => when(row.created_at)],
          ["Partition", "hide-m", (row) => `${row.partition}${row.priority ? `, priority ${row.priority}` : ""}`],
          ["Size", "n hide-m", (row) => bytes(row.size)],
          ["Payload", "wide", (row) => h(".payload", null, row.json ? row.payload : "(bytes)")],
        ],
        empty: found?.next ? empty(`Nothing among the first ${n(found.scanned)} messages`, "The search stopped at its time limit. It can be continued below.")
          : empty(filtered || query.state ? "No message matches" : "No messages", filtered || query.state ? "Change the filters or the state." : h("pre", null, `ackflow push ${name} '{"id": 1}'`)) }),
      h(Foot, { ctx, text: found ? `${n(found.items.length)} shown, ${n(found.scanned)} searched${found.next ? "; there may be more" : ""}` : "Reading", first: "From the start", more: found?.next && !found.items.length ? "Search on" : "Next", next: found?.next })));
  },
};
