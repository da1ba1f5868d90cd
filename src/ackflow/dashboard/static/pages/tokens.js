import { h } from "../dom.js";
import { del, get, post, seg } from "../api.js";
import { Time } from "../format.js";
import { Badge, Button, Card, Empty, Head, Table, app, confirm, copy, dialog, form, may, run } from "../ui.js";

async function create(first) {
  const values = await form("New token", {
    name: { label: "Name", required: true, autofocus: true }, grants: { label: "Grants, separated by spaces", value: first ? "admin" : "read-only", hint: "read-only, read-write or admin, each with a pattern if not for all queues: read-write:orders.*" },
    days: { label: "Valid for days", placeholder: "for ever", inputmode: "decimal" },
  }, { button: "Create", text: first ? "Once a token exists, every request needs one. Create an admin token first, and log in with it." : null, check: (given) => (given.days && !(Number(given.days) > 0) ? "The days must be a number above 0." : "") });
  if (!values) return;
  const made = await run(() => post("/v1/tokens", { name: values.name, grants: values.grants.split(/[\s,]+/).filter(Boolean), days: values.days ? Number(values.days) : null }), "The token is created");
  if (!made) return;
  await dialog(`Token ${made.name}`, (close) => h("div", null, h("p", { class: "dialog-text" }, "It is shown only now; the server keeps its digest."), h("code", { class: "secret" }, made.token),
    h("footer", null, h(Button, { onClick: () => copy(made.token) }, "Copy"), h(Button, { kind: "primary", autofocus: true, onClick: () => close() }, "Close"))));
}

async function revoke(name) {
  if (await confirm(`Revoke ${name}`, { text: `The token ${name} is refused within a second.`, button: `Revoke ${name}` })) await run(() => del(`/v1/tokens/${seg(name)}`), "Revoked");
}

const state = (row) => (row.revoked_at ? h(Badge, { kind: "quiet" }, "revoked") : row.expires_at && new Date(row.expires_at) < new Date() ? h(Badge, { kind: "quiet" }, "expired") : h(Badge, { kind: "ok" }, "valid"));

export default {
  title: () => "Tokens",
  live: true,
  load: (ctx, signal) => get("/v1/tokens", {}, signal),
  view(ctx, data) {
    return h("div", null, h(Head, { title: "Tokens" }, may("admin") ? h(Button, { kind: "primary", onClick: () => create(data && !data.length) }, "New token") : null),
      h(Card, null, h(Table, { caption: "Access tokens", rowKey: (row) => `${row.name}${row.created_at}`, rows: data, columns: [
        { label: "Name", css: "main-cell", cell: (row) => row.name }, { label: "State", cell: state },
        { label: "Grants", cell: (row) => h("div", { class: "badges" }, row.grants.map(([role, pattern]) => h("code", { class: "badge quiet" }, pattern === "*" ? role : `${role}:${pattern}`))) },
        { label: "Created", css: "nowrap", hide: "hide-m", cell: (row) => h(Time, { at: row.created_at }) }, { label: "Expires", css: "nowrap", hide: "hide-s", cell: (row) => (row.expires_at ? h(Time, { at: row.expires_at, ago: true }) : "never") },
        { label: "", cell: (row) => (may("admin") && !row.revoked_at ? h(Button, { kind: "small danger", label: `Revoke ${row.name}`, onClick: () => revoke(row.name) }, "Revoke") : null) }],
      empty: h(Empty, { title: "No tokens", icon: "tokens" }, app.session.open ? "Everyone who reaches this server may do everything. Once there is a token, every request needs one." : null) })));
  },
};
