import { h } from "../dom.js";
import { post, queuePath } from "../api.js";
import { plural } from "../format.js";
import { Card, Field, Head, button, link, may, submit, toast } from "../ui.js";
import { parse, pretty } from "../json.js";
import { crumbs, tabs } from "./queue.js";

const quote = JSON.stringify;

// The body is written as text, so that the numbers of the payload keep all their digits.
function body(draft) {
  const parts = [`"data":${draft.data}`];
  if (draft.partition) parts.push(`"partition":${quote(draft.partition)}`);
  for (const name of ["priority", "delay"]) if (draft[name]) parts.push(`"${name}":${Number(draft[name])}`);
  if (draft.transaction_id) parts.push(`"transaction_id":${quote(draft.transaction_id)}`);
  const headers = Object.fromEntries(draft.headers.split("\n").filter((line) => line.includes("=")).map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]));
  if (Object.keys(headers).length) parts.push(`"headers":${quote(headers)}`);
  return `{"items":[{${parts.join(",")}}]}`;
}

export default {
  title: ([name]) => `Push to ${name}`,
  enter(ctx) {
    const kept = ctx.query.from ? JSON.parse(sessionStorage.getItem("draft") || "null") : null;
    ctx.state.draft = { data: kept?.data ?? "{\n  \n}", partition: kept && kept.partition !== "Default" ? kept.partition : "", priority: kept?.priority || "", delay: "", transaction_id: "",
      headers: kept ? Object.entries(kept.headers).map(([name, value]) => `${name}=${value}`).join("\n") : "" };
    ctx.state.pushed = [];
    ctx.state.problem = "";
  },
  view(ctx) {
    const [name] = ctx.params;
    const { draft } = ctx.state;
    const field = (key, label, more) => h(Field, { label, name: key, value: draft[key], onInput: (event) => { draft[key] = event.target.value; }, ...more });
    const push = async (event) => {
      event.preventDefault();
      ctx.state.problem = "";
      try {
        parse(draft.data.trim());
        JSON.parse(draft.data);
        const { ids } = await post(queuePath(name, "/messages"), body(draft));
        ctx.state.pushed = ids.concat(ctx.state.pushed).slice(0, 20);
        toast(`${plural(ids.length, "message")} pushed`);
      } catch (error) {
        ctx.state.problem = error instanceof SyntaxError || !error.code ? `The payload is not JSON: ${error.message}` : error.message;
      }
      ctx.update();
    };
    return h("div", null, h(Head, { title: "Push a message", crumbs: crumbs(name) }), tabs(name, "Push"),
      !may("read-write", name) ? h("p.banner", null, "Pushing needs the role read-write on this queue.") : h(".split", null,
        h(Card, null, h("form.pad", { onSubmit: push }, h(".form-grid", null,
          field("data", "Payload (JSON)", { area: 14 }), field("headers", "Headers, one name=value in each line", { area: 3 }),
          h("p.problem", { role: "alert" }, ctx.state.problem),
          h(".actions", null, submit(`Push to ${name}`), button("Format", () => { draft.data = pretty(draft.data.trim()); ctx.update(); }))))),
        h("div", null, h(Card, { title: "Delivery" }, h(".pad.form-grid", null, field("partition", "Partition", { placeholder: "Default" }), field("priority", "Priority", { inputmode: "numeric", hint: "0 is served first" }),
          field("delay", "Delay in seconds", { inputmode: "decimal" }), field("transaction_id", "Transaction id", { hint: "An id that the partition already has adds nothing" }))),
        ctx.state.pushed.length ? h(Card, { title: "Pushed" }, h("ul.pad", null, ctx.state.pushed.map((id) => h("li", { key: id }, h("a.mono", { href: link.message(name, id) }, id))))) : null)));
  },
};
