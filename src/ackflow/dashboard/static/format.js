// Numbers, durations and times as people read them.

import { h } from "./dom.js";

export const QUEUE_MODE = "__QUEUE_MODE__";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const n = (value) => (value == null ? "–" : whole.format(value));

export function short(value) {
  if (value == null) return "–";
  const abs = Math.abs(value);
  if (abs < 10000) return whole.format(value);
  if (abs < 1e6) return `${(value / 1e3).toFixed(abs < 1e5 ? 1 : 0)}k`;
  if (abs < 1e9) return `${(value / 1e6).toFixed(abs < 1e7 ? 2 : 1)}M`;
  return `${(value / 1e9).toFixed(2)}G`;
}

export function rate(value) {
  if (value == null) return "–";
  if (value === 0) return "0";
  if (value < 0.1) return "<0.1";
  return value < 10 ? value.toFixed(1) : short(Math.round(value));
}

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at++; }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function span(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.001) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = parts.findIndex(([, size]) => seconds >= size);
  const [unit, size] = parts[at];
  const first = Math.floor(seconds / size);
  const next = parts[at + 1];
  const rest = next && first < 10 ? Math.floor((seconds - first * size) / next[1]) : 0;
  return rest ? `${first} ${unit} ${rest} ${next[0]}` : `${first} ${unit}`;
}

export const groupName = (name) => (name === QUEUE_MODE ? "default group" : name);

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });

export function local(value) {
  const at = new Date(value);
  const today = new Date().toDateString() === at.toDateString();
  return today ? clock.format(at) : `${day.format(at)}, ${clock.format(at)}`;
}

// A time in the zone of the reader; UTC is shown on hover.
function Time({ at, ago }) {
  if (!at) return "–";
  const utc = typeof at === "string" ? at : new Date(at).toISOString();
  const seconds = (Date.now() - new Date(at)) / 1000;
  const relative = Math.abs(seconds) < 1 ? "now" : seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  const title = `${utc.replace("T", " ").replace("Z", "")} UTC`;
  return h("time", { datetime: utc, title: ago ? `${local(at)} local, ${title}` : title }, ago ? relative : local(at));
}

export const when = (at) => Time({ at });
export const ago = (at) => Time({ at, ago: true });
export const plural = (count, word, words) => `${n(count)} ${count === 1 ? word : words || word + "s"}`;
export const initials = (id) => (id ? `${id.slice(0, 8)}…${id.slice(-6)}` : "–");
