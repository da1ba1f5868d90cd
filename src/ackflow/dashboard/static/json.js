// A payload as a tree that can be folded. Numbers are shown digit by digit as they were sent: this reads
// the text itself, because JavaScript would round large numbers.

import { h } from "./dom.js";
import { plural } from "./format.js";

const TOKEN = /\s*(?:([{}[\],:])|("(?:[^"\\]|\\.)*")|([^\s{}[\],:"]+))/y;
const MOST = 5000;

export function parse(text) {
  TOKEN.lastIndex = 0;
  let count = 0;
  const next = () => {
    const found = TOKEN.exec(text);
    if (!found) throw new Error("not JSON");
    return found[1] || found[2] || found[3];
  };
  const value = (token) => {
    if (++count > MOST) throw new Error("too large");
    if (token === "{" || token === "[") {
      const items = [];
      const close = token === "{" ? "}" : "]";
      let one = next();
      while (one !== close) {
        if (one === ",") one = next();
        if (token === "{") {
          next();
          items.push([one, value(next())]);
        } else items.push([null, value(one)]);
        one = next();
      }
      return { open: token, close, items };
    }
    return { text: token, kind: token[0] === '"' ? "string" : /[-\d]/.test(token[0]) ? "number" : "word" };
  };
  return value(next());
}

export function pretty(text) {
  const write = (node, indent) => {
    if (!node.items) return node.text;
    if (!node.items.length) return node.open + node.close;
    const inner = indent + "  ";
    return `${node.open}\n${node.items.map(([name, one]) =>
      `${inner}${name === null ? "" : `${name}: `}${write(one, inner)}`).join(",\n")}\n${indent}${node.close}`;
  };
  try {
    return write(parse(text), "");
  } catch {
    return text;
  }
}

function tree(node, name, depth) {
  const label = name === null || name === undefined ? null : [h("span.j-name", null, name), ": "];
  if (!node.items) return h(".j-leaf", null, label, h("span", { class: `j-${node.kind}` }, node.text));
  if (!node.items.length) return h(".j-leaf", null, label, node.open + node.close);
  return h("details.j-node", { open: depth < 3 && node.items.length <= 60 },
    h("summary", null, label, node.open, h("span.j-count", null,
      ` ${plural(node.items.length, node.open === "{" ? "field" : "item")} `), h("span.j-close", null, node.close)),
    node.items.map(([inner, one], at) => tree(one, inner === null ? String(at) : inner, depth + 1)));
}

export function Json({ text }) {
  try {
    return h(".json", null, tree(parse(text), null, 0));
  } catch {
    return h("pre.raw", null, text);
  }
}
