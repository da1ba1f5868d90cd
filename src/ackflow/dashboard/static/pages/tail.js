import { h } from "../dom.js";
import { queuePath, url } from "../api.js";
import { n, initials, local } from "../format.js";
import { Card, Field, Head, button, empty, link } from "../ui.js";
import { crumbs, tabs } from "./queue.js";

const MOST = 500;

function listen(ctx) {
  stop(ctx);
  const source = ctx.state.source = new EventSource(url(queuePath(ctx.params[0], "/tail"), { last: ctx.state.rows.length ? 0 : 20, partition: ctx.query.partition, from: ctx.state.from }));
  source.addEventListener("messages", (event) => {
    const some = JSON.parse(event.data);
    ctx.state.from = event.lastEventId;
    ctx.state.away = false;
    if (!some.length) return;
    ctx.state.count += some.length;
    ctx.state.rows = some.reverse().concat(ctx.state.rows).slice(0, MOST);
    if (!ctx.state.paused) ctx.update();
  });
  source.onerror = () => { ctx.state.away = source.readyState === EventSource.CLOSED; if (ctx.state.away) ctx.update(); };
}

function stop(ctx) {
  ctx.state.source?.close();
  ctx.state.source = null;
}

export default {
  title: ([name]) => `Tail of ${name}`,
  enter(ctx) {
    Object.assign(ctx.state, { rows: [], count: 0, paused: false, away: false });
    ctx.state.hide = () => { document.hidden ? stop(ctx) : !ctx.state.paused && listen(ctx); };
    document.addEventListener("visibilitychange", ctx.state.hide);
    listen(ctx);
  },
  leave(ctx) {
    document.removeEventListener("visibilitychange", ctx.state.hide);
    stop(ctx);
  },
  view(ctx) {
    const [name] = ctx.params;
    const { state } = ctx;
    const wanted = (state.filter || "").toLowerCase();
    const rows = wanted ? state.rows.filter((row) => row.payload.toLowerCase().includes(wanted) || row.id.includes(wanted)) : state.rows;
    return h("div", null, h(Head, { title: "Tail", crumbs: crumbs(name) },
      button(state.paused ? "Resume" : "Pause", () => { state.paused = !state.paused; state.paused ? stop(ctx) : listen(ctx); ctx.update(); }, "", { pressed: String(state.paused) }),
      button("Clear", () => { state.rows = []; ctx.update(); })), tabs(name, "Tail"),
    h(Card, null, h(".filters", null, h(Field, { label: "Only with", type: "search", value: state.filter || "", onInput: (event) => { state.filter = event.target.value; ctx.update(); } }),
      h(Field, { label: "Partition", value: ctx.query.partition || "", placeholder: "all", onChange: (event) => { ctx.setQuery({ partition: event.target.value }); state.rows = []; state.from = ""; listen(ctx); } })),
    rows.length ? h("ul.tail", { tabindex: "0", "aria-label": "New messages, newest first" }, rows.map((row) => h("li", { key: row.id },
      h("time", { datetime: row.created_at, title: row.created_at }, local(row.created_at)), h("a", { href: link.message(name, row.id) }, initials(row.id)), h("span.payload", null, row.json ? row.payload : "(bytes)"))))
      : empty(state.paused ? "Paused" : "Waiting for messages", "Messages appear here as they are pushed. Nothing is leased."),
    h(".foot", null, h("span", null, state.away ? "Disconnected" : `${n(state.count)} seen, the last ${n(Math.min(MOST, state.rows.length))} shown`))));
  },
};
