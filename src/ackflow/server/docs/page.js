"use strict";

const make = (tag, text = "", more = {}) =>
  Object.assign(document.createElement(tag), { textContent: text, ...more });

const resolve = (schema, all) =>
  schema && schema.$ref ? all[schema.$ref.split("/").pop()] : schema;

// A first body to change: required fields with a value of their type.
function example(schema, all, depth = 0) {
  const found = resolve(schema, all);
  if (!found || depth > 6) return null;
  if ("default" in found && depth) return found.default;
  if (found.const !== undefined) return found.const;
  if (found.enum) return found.enum[0];
  const choice = found.anyOf || found.oneOf;
  if (choice) return example(choice[0], all, depth + 1);
  const type = Array.isArray(found.type) ? found.type[0] : found.type;
  if (type === "object") {
    const made = {};
    for (const name of found.required || []) {
      made[name] = example((found.properties || {})[name], all, depth + 1);
    }
    return made;
  }
  if (type === "array") return found.items ? [example(found.items, all, depth + 1)] : [];
  return { string: "", integer: 0, number: 0, boolean: false }[type] ?? null;
}

function field(parent, param) {
  const input = make("input", "", { placeholder: param.schema.default ?? "" });
  const label = make("label", param.name + (param.required ? " *" : ""));
  label.title = param.description || "";
  parent.append(label, input);
  return () => input.value;
}

async function send(method, url, body, out) {
  const headers = {};
  const token = document.getElementById("token").value;
  if (token) headers.Authorization = "Bearer " + token;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  out.textContent = "…";
  const started = performance.now();
  try {
    const answer = await fetch(url, { method, headers, body });
    const text = await answer.text();
    const spent = Math.round(performance.now() - started);
    let shown = text;
    // Numbers are shown as they came: parsing would round large ones.
    if (text.length < 100000 && !/\d{16}/.test(text)) {
      try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* no JSON */ }
    }
    out.textContent = `${answer.status} ${answer.statusText} in ${spent} ms\n\n${shown}`;
  } catch (error) {
    out.textContent = String(error);
  }
}

function attempt(box, path, method, operation, all) {
  const fields = make("div", "", { className: "fields" });
  const params = operation.parameters || [];
  const read = params.map((param) => [param, field(fields, param)]);
  box.append(fields);
  let body;
  if (operation.requestBody) {
    const schema = Object.values(operation.requestBody.content)[0].schema;
    body = make("textarea", "", { value: JSON.stringify(example(schema, all), null, 2) });
    box.append(body);
  }
  const out = make("pre");
  const button = make("button", "Send", { type: "button" });
  button.addEventListener("click", () => {
    let url = path.slice(1);
    const query = new URLSearchParams();
    for (const [param, value] of read) {
      if (param.in === "path") url = url.replace(`{${param.name}}`, encodeURIComponent(value()));
      else if (value() !== "") query.set(param.name, value());
    }
    if ([...query].length) url += "?" + query;
    send(method.toUpperCase(), url, body && body.value, out);
  });
  box.append(button, out);
}

function show(path, method, operation, all) {
  const box = make("details");
  const line = make("summary");
  line.append(
    make("span", method.toUpperCase(), { className: "method" }),
    make("code", path),
    make("span", operation["x-role"], { className: "role" }),
    make("div", operation.summary, { className: "says" }),
  );
  box.append(line);
  box.dataset.words = `${path} ${method} ${operation.summary}`.toLowerCase();
  box.addEventListener("toggle", () => attempt(box, path, method, operation, all), { once: true });
  return box;
}

async function start() {
  const document_ = await (await fetch("openapi.json")).json();
  document.getElementById("version").textContent = document_.info.version;
  const all = document_.components.schemas;
  const sections = new Map();
  for (const [path, methods] of Object.entries(document_.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!sections.has(tag)) {
        const section = make("section");
        section.append(make("h2", tag));
        sections.set(tag, section);
      }
      sections.get(tag).append(show(path, method, operation, all));
    }
  }
  document.getElementById("operations").replaceChildren(...sections.values());
}

document.getElementById("find").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(" ");
  for (const box of document.querySelectorAll("details")) {
    box.hidden = !words.every((word) => box.dataset.words.includes(word));
  }
});
start();
