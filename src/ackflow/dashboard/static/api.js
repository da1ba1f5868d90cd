// Requests to the server. Paths are relative to the page, so that any prefix of a proxy works.

export const BASE = new URL("../", document.baseURI);

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const seg = encodeURIComponent;

export function url(path, query) {
  const made = new URL(path.replace(/^\//, ""), BASE);
  for (const name in query || {}) {
    const value = query[name];
    if (value !== undefined && value !== null && value !== "") made.searchParams.set(name, value);
  }
  return made;
}

async function request(method, path, { query, body, signal, raw } = {}) {
  const headers = { "x-ackflow-ui": "1" };
  let content;
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    content = typeof body === "string" ? body : JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(url(path, query), { method, headers, body: content, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server cannot be reached; trying again.");
  }
  if (response.ok) return raw ? response : response.status === 204 ? null : response.json();
  let code = "error", message = `${response.status} ${response.statusText}`;
  try {
    const { error } = await response.json();
    code = error.code;
    message = error.message;
  } catch { /* no JSON: a proxy answered */ }
  throw new ApiError(response.status, code, message);
}

export const get = (path, query, signal) => request("GET", path, { query, signal });
export const post = (path, body = {}, query) => request("POST", path, { body, query });
export const patchTo = (path, body) => request("PATCH", path, { body });
export const del = (path) => request("DELETE", path);
export const raw = (path, query) => request("GET", path, { query, raw: true });
export const queuePath = (name, rest = "") => `/v1/queues/${seg(name)}${rest}`;
