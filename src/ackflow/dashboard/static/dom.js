// A small virtual DOM: views are functions of data, and only what has changed is touched, so that a
// page that is refreshed keeps its focus, its selection and its scroll position.

const SVG = "http://www.w3.org/2000/svg";
// Marks what `h` made. Data of messages has no symbols, so that no object in it becomes an element.
const NODE = Symbol("node");
const textOf = (kid) => (typeof kid === "object" ? JSON.stringify(kid) : String(kid));

// `tag` may name classes: h("span.badge.quiet"); without a name it is a div: h(".foot").
export function h(tag, props, ...kids) {
  props = props || {};
  const children = [];
  const add = (kid) => {
    if (Array.isArray(kid)) kid.forEach(add);
    else if (kid != null && kid !== false && kid !== true) {
      children.push(kid[NODE] ? kid : { [NODE]: true, text: textOf(kid) });
    }
  };
  add(kids);
  if (typeof tag === "function") return tag(props, children);
  const [name, ...css] = tag.split(".");
  if (css.length) props = { ...props, class: css.join(" ") };
  return { [NODE]: true, tag: name || "div", props, children, key: props.key };
}

function create(node, svg) {
  if (node.text !== undefined) return document.createTextNode(node.text);
  const isSvg = svg || node.tag === "svg";
  const made = isSvg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  for (const name in node.props) set(made, name, undefined, node.props[name]);
  for (const kid of node.children) made.append(create(kid, isSvg && node.tag !== "foreignObject"));
  if (node.props.value !== undefined) set(made, "value", undefined, node.props.value);
  made.vnode = node;
  if (node.props.ref) node.props.ref(made);
  return made;
}

function set(element, name, before, value) {
  if (name === "key" || name === "ref" || before === value) return;
  if (name.startsWith("on")) {
    const event = name.slice(2).toLowerCase();
    if (before) element.removeEventListener(event, before);
    if (value) element.addEventListener(event, value);
  } else if (name === "value" || name === "checked" || name === "selected" || name === "open") {
    if (element[name] !== value && !(name === "value" && element === document.activeElement)) {
      element[name] = value ?? "";
    }
  } else if (name === "style") {
    for (const part in value) element.style.setProperty(part, value[part]);
  } else if (value == null || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : value);
}

function same(a, b) {
  return a && b && a.tag === b.tag && a.key === b.key && (a.text === undefined) === (b.text === undefined);
}

function patch(element, before, node, svg) {
  if (before === node) return element;
  if (!same(before, node)) {
    const made = create(node, svg);
    element.replaceWith(made);
    return made;
  }
  if (node.text !== undefined) {
    if (before.text !== node.text) element.data = node.text;
    return element;
  }
  for (const name in before.props) {
    if (!(name in node.props)) set(element, name, before.props[name], undefined);
  }
  for (const name in node.props) set(element, name, before.props[name], node.props[name]);
  children(element, before.children, node.children, svg || node.tag === "svg");
  element.vnode = node;
  return element;
}

function children(element, before, after, svg) {
  const elements = Array.from(element.childNodes);
  const keyed = new Map();
  before.forEach((node, at) => node.key !== undefined && keyed.set(node.key, at));
  const used = new Set();
  let free = 0;
  const result = after.map((node) => {
    let at = node.key !== undefined ? keyed.get(node.key) : undefined;
    if (node.key === undefined) {
      while (free < before.length && (before[free].key !== undefined || used.has(free))) free++;
      at = free < before.length ? free++ : undefined;
    }
    if (at === undefined || used.has(at)) return create(node, svg);
    used.add(at);
    return patch(elements[at], before[at], node, svg);
  });
  elements.forEach((old, at) => { if (!used.has(at)) old.remove(); });
  result.forEach((child, at) => {
    if (element.childNodes[at] !== child) element.insertBefore(child, element.childNodes[at] || null);
  });
}

// Show a view in an element, or change what is shown there.
export function render(root, node) {
  const shown = root.shown;
  if (shown) root.shown = { node, element: patch(shown.element, shown.node, node, false) };
  else {
    const element = create(node, false);
    root.replaceChildren(element);
    root.shown = { node, element };
  }
}
