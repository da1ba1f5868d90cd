// Charts in SVG: a sparkline for tables, and an area or line chart with a readout under the pointer.

import { h } from "./dom.js";
import { short, rate } from "./format.js";

export function Spark({ values, label }) {
  const width = 88, height = 22;
  if (!values || !values.some((value) => value)) {
    return h("svg.spark", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}: none` },
      h("path.flat", { d: `M0 ${height - 1.5}H${width}` }));
  }
  const top = Math.max(...values);
  const points = values.map((value, at) =>
    `${((at / (values.length - 1)) * width).toFixed(1)} ${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`);
  const line = `M${points.join("L")}`;
  return h("svg.spark", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}: now ${rate(values[values.length - 1])}, at most ${rate(top)} per second` },
  h("path.area", { d: `${line}L${width} ${height}L0 ${height}Z` }), h("path.line", { d: line }));
}

function nice(top) {
  if (top <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(top));
  for (const step of [1, 1.5, 2, 3, 4, 5, 8, 10]) if (top <= step * size) return step * size;
  return 10 * size;
}

const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const date = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const moment = (at, step) => (step >= 3600 ? `${date.format(at * 1000)} ` : "") + time.format(at * 1000);

// `lines`: [{name, css, read(interval)}]; with `stacked`, areas lie on each other.
export function Chart({ title, items, step, lines, unit = "", stacked = false }) {
  // As wide as it is drawn, so that its text keeps its size.
  const room = (document.querySelector("main")?.clientWidth || innerWidth - 224) - (innerWidth > 820 ? 56 : 28);
  const width = Math.round((room < 878 ? room : (room - 18) / 2) - 34), height = 190, left = 44, bottom = 22, top = 8;
  const right = width - 6, floor = height - bottom;
  const heads = h(".chart-head", null, h("h3", null, title), h("ul.legend", null,
    lines.map((line) => h("li", { class: line.css }, line.name))));
  if (!items || items.length < 2) {
    return h("figure.chart", null, heads, h(".chart-empty", null,
      "Charts fill once a minute."));
  }
  const columns = lines.map((line) => items.map(line.read));
  const sums = items.map((_, at) => columns.reduce((sum, column) => sum + column[at], 0));
  const most = stacked ? Math.max(...sums) : Math.max(...columns.map((column) => Math.max(...column)));
  const limit = nice(most);
  const x = (at) => left + (at / (items.length - 1)) * (right - left);
  const y = (value) => floor - (value / limit) * (floor - top);
  const base = items.map(() => 0);
  const paths = lines.map((line, index) => {
    const lower = base.slice();
    const upper = columns[index].map((value, at) => (stacked ? (base[at] += value) : value));
    const up = upper.map((value, at) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
    const down = lower.map((value, at) => `${x(at).toFixed(1)} ${y(stacked ? value : 0).toFixed(1)}`).reverse();
    if (!columns[index].some((value) => value)) return null;
    return [
      h("path", { class: `area ${line.css}${stacked ? " stacked" : ""}`, d: `M${up.join("L")}L${down.join("L")}Z` }),
      stacked ? null : h("path", { class: `line ${line.css}`, d: `M${up.join("L")}` }),
    ];
  });
  const grid = [0, 0.5, 1].map((part) => [
    h("line.grid", { x1: left, x2: right, y1: y(limit * part), y2: y(limit * part) }),
    h("text.tick.end", { x: left - 6, y: y(limit * part) + 3.5 }, limit * part < 10 && (limit * part) % 1 ? (limit * part).toFixed(limit < 1 ? 2 : 1) : short(limit * part)),
  ]);
  const marks = (width < 420 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]).map((part) => {
    const at = Math.round(part * (items.length - 1));
    return h("text", { class: `tick ${part === 0 ? "" : part === 1 ? "end" : "middle"}`, x: x(at), y: height - 6 },
      moment(items[at].at, step));
  });
  const readout = (event) => {
    const figure = event.currentTarget.closest("figure");
    const box = event.currentTarget.getBoundingClientRect();
    const part = ((event.clientX - box.left) / box.width * width - left) / (right - left);
    const at = Math.max(0, Math.min(items.length - 1, Math.round(part * (items.length - 1))));
    const tip = figure.querySelector(".chart-tip");
    const rule = figure.querySelector(".rule");
    rule.setAttribute("x1", x(at));
    rule.setAttribute("x2", x(at));
    rule.classList.add("on");
    tip.textContent = `${moment(items[at].at, step)}  ` + lines.map((line, index) =>
      `${line.name} ${unit === "/s" ? rate(columns[index][at]) : short(columns[index][at])}${unit}`).join("  ");
    tip.classList.add("on");
  };
  const leave = (event) => event.currentTarget.closest("figure").querySelectorAll(".on")
    .forEach((one) => one.classList.remove("on"));
  const last = items.length - 1;
  const spoken = `${title}. ` + lines.map((line, index) =>
    `${line.name}: now ${short(columns[index][last])}${unit}, at most ${short(Math.max(...columns[index]))}${unit}`).join("; ");
  return h("figure.chart", null, heads,
    h("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spoken, onMousemove: readout, onMouseleave: leave },
      grid, paths, marks, h("line.rule", { y1: top, y2: floor, x1: 0, x2: 0 })),
    h(".chart-tip", { "aria-hidden": "true" }, " "));
}

// The share of each state as one bar.
export function StateBar({ ready, leased, waiting, dead }) {
  const parts = [["ready", ready], ["leased", leased], ["waiting", waiting], ["dead", dead]];
  const all = parts.reduce((sum, [, value]) => sum + value, 0);
  let at = 0;
  return h("svg.statebar", { viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": parts.map(([name, value]) => `${name} ${value}`).join(", ") },
  h("rect.none", { width: 100, height: 6 }),
  parts.map(([name, value]) => {
    if (!value) return null;
    const width = Math.max(1.5, (value / all) * 100);
    const bar = h("rect", { class: name, x: at, width, height: 6 });
    at += width;
    return bar;
  }));
}
