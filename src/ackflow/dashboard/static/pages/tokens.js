import { h } from "../dom.js";
import { del, get, post, seg } from "../api.js";
import { ago, when } from "../format.js";
import { Card, Head, Table, app, badge, button, confirm, copy, dialog, empty, form, may, run } from "../ui.js";

async function create(first) {
  const values = await form("New token", {
    name: { label: "Name", required: true, autofocus: true }, grants: { label: "Grants, separated by spaces", value: first ? "admin" : "read-only", hint: "read-only, read-write or admin, each with a pattern if not for all queues: read-write:orders.*" },
    days: { label: "Valid for days", placeholder: "for ever", inputmode: "decimal" },
  }, { button: "Create", text: first ? "Once a token exists, every request needs one. Create an admin token first, and log in with it." : null, check: (given) => (given.days && !(Number(given.days) > 0) ? "The days must be a number above 0." : "") });
  if (!values) return;
  const made = await run(() => post("/v1/tokens", { name: values.name, grants: values.grants.split(/[\s,]+/).filter(Boolean), days: values.days ? Number(values.days) : null }), "The token is created");
  if (!made) return;
  await dialog(`Token ${made.name}`, (close) => h("div", null, h("p.dialog-text", null, "It is shown only now; the server keeps its digest."), h("code.secret", null, made.token),
    h("footer", null, button("Copy", () => copy(made.token)), button("Close", () => close(), "primary", { autofocus: true }))));
}

async function revoke(name) {
  if (await confirm(`Revoke ${name}`, { text: `The token ${name} is refused within a second.`, button: `Revoke ${name}` })) await run(() => del(`/v1/tokens/${seg(name)}`), "Revoked");
}

const state = (row) => (row.revoked_at ? badge("revoked", "quiet") : row.expires_at && new Date(row.expires_at) < new Date() ? badge("expired", "quiet") : badge("valid", "ok"));

export default {
  title: () => "Tokens",
  live: true,
  load: (ctx, signal) => get("/v1/tokens", {}, signal),
  view(ctx, data) {
    return h("div", null, h(Head, { title: "Tokens" }, may("admin") && button("New token", () => create(data && !data.length), "primary")),
      h(Card, null, h(Table, { caption: "Access tokens", by: (row) => `${row.name}${row.created_at}`, rows: data, columns: [
        ["Name", "main-cell", (row) => row.name], ["State", "", state],
        ["Grants", "", (row) => h(".badges", null, row.grants.map(([role, pattern]) => h("code.badge.quiet", null, pattern === "*" ? role : `${role}:${pattern}`)))],
        ["Created", "nowrap hide-m", (row) => when(row.created_at)], ["Expires", "nowrap hide-s", (row) => (row.expires_at ? ago(row.expires_at) : "never")],
        ["", "", (row) => (may("admin") && !row.revoked_at && button("Revoke", () => revoke(row.name), "small danger", { label: `Revoke ${row.name}` }))]],
      empty: empty("No tokens", app.session.open ? "Everyone who reaches this server may do everything. Once there is a token, every request needs one." : null, "tokens") })));
  },
};
