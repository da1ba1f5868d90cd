import { h } from "../dom.js";
import { del, get, post, queuePath, seg, url } from "../api.js";
import { n, bytes, groupName, local, ago, when } from "../format.js";
import { Card, Head, State, app, button, confirm, copy, empty, form, link, may, run, segments } from "../ui.js";
import { Json, pretty } from "../json.js";
import { crumbs } from "./queue.js";
import { act } from "./dead.js";

const CSS = { ready: "ready", leased: "leased", waiting: "waiting", delayed: "waiting", held_back: "waiting", window_full: "waiting", paused: "info", dead: "dead", acked: "ok", done: "ok", requeued: "ok", skipped: "info" };
const EVENT = { pushed: "ready", due: "waiting", delivered: "leased", ack: "ok", requeue: "ok", nack: "dead", expired: "dead", reject: "dead", dead_letter: "dead", dead: "dead", release: "waiting" };
const isTime = /\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?Z?(?: UTC)?|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;

async function settle(ctx, group, verdict, label, why) {
  const [name, id] = ctx.params;
  const fields = verdict === "ack" || verdict === "release" ? {} : { reason: { label: "Reason", hint: "Kept with the message" } };
  if (verdict === "nack") fields.delay = { label: "Again after, seconds", value: "0" };
  const values = await form(`${label} for ${groupName(group)}`, fields, { text: TEXT[verdict], button: label, danger: verdict !== "release" });
  if (!values) return;
  await run(() => post(queuePath(name, `/messages/${seg(id)}/settle`), { verdict, group, reason: values.reason || null, delay: values.delay ? Number(values.delay) : null, deliveries: why.deliveries ?? null }),
    (result) => (result.done ? `${label}: done` : "It already has this outcome"));
}

const TEXT = {
  ack: "The message is done for this group. A consumer that holds it loses its lease.",
  nack: "Counts as a failure; at its retry limit the message becomes a dead letter.",
  release: "The message can be delivered again immediately. The delivery is not counted.",
  reject: "The message is never delivered to this group again; it is kept as a dead letter.",
  dead_letter: "The message becomes a dead letter of this group now.",
};

function actions(ctx, one) {
  const [name] = ctx.params;
  if (!may("read-write", name)) return null;
  const { state, deliveries } = one.why;
  const held = state === "leased", returned = ["waiting", "ready", "held_back", "paused", "window_full"].includes(state) && deliveries;
  const settles = (verdict, label) => button(label, () => settle(ctx, one.group, verdict, label, one.why), "small");
  return [held && settles("nack", "Fail"), (held || (returned && state === "waiting")) && settles("release", "Release"), (held || returned) && [settles("reject", "Reject"), settles("dead_letter", "Dead-letter"), settles("ack", "Acknowledge")],
    state === "dead" && [button("Redrive", () => act(ctx, "redrive", name, { ids: [one.why.dead_letter] }, "of this message"), "small"), h("a.button.small", { href: link.dead(name) }, "Dead letters")]];
}

async function remove(ctx) {
  const [name, id] = ctx.params;
  if (!await confirm("Delete message", { text: "It is deleted for every group that has not settled it. Its dead letters stay.", button: "Delete message" })) return;
  await run(() => del(queuePath(name, `/messages/${seg(id)}`)), (result) => (result.done ? "Deleted" : "It no longer exists"));
}

function again(message, edit) {
  sessionStorage.setItem("draft", JSON.stringify({ data: pretty(message.payload), partition: message.partition, priority: message.priority, headers: message.headers }));
  app.go(link.queue(message.queue, `/push?from=${edit ? "edit" : "copy"}`));
}

// A payload that was cut or masked cannot be pushed again.
const copies = (message) => message.json && !message.truncated && !(app.session.masked && JSON.stringify([message.payload, message.headers]).includes("••••"));

const sentence = (text) => text.replace(isTime, (found) => { const at = new Date(found.replace(" UTC", "").replace(" ", "T").replace(/Z?$/, "Z")); return isNaN(at) ? found : local(at); });

export default {
  title: ([, id]) => `Message ${id.slice(0, 8)}`,
  live: true,
  load: (ctx, signal) => get(queuePath(ctx.params[0], `/messages/${seg(ctx.params[1])}`), { group: ctx.query.group }, signal),
  view(ctx, data) {
    const [name, id] = ctx.params;
    const message = data?.message;
    const write = may("read-write", name);
    const fact = (label, value) => [h("dt", null, label), h("dd", null, value)];
    return h("div", null, h(Head, { title: h("span.mono", null, id), crumbs: [...crumbs(name), ["Messages", link.queue(name, "/messages")]] },
      button("Copy id", () => copy(id)),
      message && write && [copies(message) && [button("Duplicate", () => again(message, false)), button("Edit and push again", () => again(message, true))], data.stored && button("Delete", () => remove(ctx), "danger")]),
    data?.groups.map((one) => h("section.stack-why", { key: one.group },
      h("p", { class: `why ${CSS[one.why.state] || ""}` }, (data.groups.length > 1 || one.group !== "__QUEUE_MODE__") && h("small", null, groupName(one.group), h("br")), sentence(one.why.sentence)))),
    data && !data.groups.length ? h("p.why.ready", null, "No group has read this queue; the message is kept until one does.") : null,
    h(".split", null,
      h("div", null,
        h(Card, { title: "Payload", actions: message && [segments("View", [["", "Tree"], ["raw", "Raw"]], ctx.query.view || "", (view) => ctx.setQuery({ view })),
        button("Copy", () => copy(message.payload), "small"), h("a.button.small", { href: url(queuePath(name, `/messages/${seg(id)}/payload`)).href, download: "" }, "Download")] },
        message && !data.stored && h("p.banner", null, "The queue no longer stores this message; its dead letter keeps this copy."),
        h(".pad", null, !message ? empty(data ? "The message is no longer stored" : "Reading", data ? "Its history below is kept for some time." : null)
          : !message.json ? h("pre.raw", null, message.payload || "(bytes)") : ctx.query.view === "raw" || message.truncated ? h("pre.raw", null, message.payload, message.truncated ? `\n… the first part of ${bytes(message.size)}` : "") : h(Json, { text: message.payload })))),
      h("div", null,
        message && h(Card, { title: "Properties" }, h(".pad", null, h("dl.facts", null,
          fact("Pushed", when(message.created_at)), message.due_at !== message.created_at && fact("Due", when(message.due_at)),
          fact("Partition", message.partition), fact("Priority", n(message.priority)), fact("Sequence", n(message.sequence)), fact("Size", bytes(message.size)), fact("Transaction id", h("span.mono", null, message.transaction_id)),
          Object.entries(message.headers).map(([key, value]) => fact(h("code", null, key), h("code", null, value)))))))),
    data?.groups.map((one) => h(Card, { key: `t${one.group}`, title: h("span.badges", null, groupName(one.group), h(State, { state: one.why.state })), actions: actions(ctx, one) },
      one.events.length ? h("ul.timeline", null, one.events.map((event) => h("li", { class: EVENT[event.kind] || "" },
        h("strong", null, event.text), event.consumer ? ` · ${event.consumer}` : "", h("small", null, when(event.at), event.token && [" · lease ", h("code", null, event.token)]),
        event.details && h("small", null, event.details))),
      one.why.until ? h("li", { class: CSS[one.why.state] || "" }, h("strong", null, one.why.state === "leased" ? "Lease ends" : "Again"), h("small", null, when(one.why.until), " (", ago(one.why.until), ")")) : null)
        : empty("No history", "The history of deliveries is kept for the queue's history_seconds."))),
    data?.more_groups && h("p.banner", null, "More groups read this queue; the first 50 are shown."));
  },
};
