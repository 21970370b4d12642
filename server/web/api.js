// The server's public API: JSON calls, streams of events, pictures. Addresses are relative to the page, so that a proxy
// may serve it under any path. The key is stored for this tab only.

const KEY = "tessera.key";
let keyInUse = sessionStorage.getItem(KEY) ?? "";
let askForKey = async () => false;

export const hasKey = () => keyInUse !== "";

export function setKey(secret) {
  keyInUse = secret;
  if (secret) sessionStorage.setItem(KEY, secret);
  else sessionStorage.removeItem(KEY);
}

// `ask` resolves to whether there is a new key; it is called when the server refuses the one in use.
export function onKeyNeeded(ask) {
  askForKey = ask;
}

// Distinguishes the images of different keys without storing a key: a hash that many keys share (FNV-1a, 32 bits).
export function ownerOfImages() {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(keyInUse)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return keyInUse ? hash.toString(16) : "";
}

// An error response of the server: its message, the field that it names, its code.
export class ApiError extends Error {
  constructor(status, error, retryAfter) {
    super(error?.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.field = error?.param ?? null;
    this.code = error?.code ?? "";
    this.retryAfter = retryAfter;
  }
}

// The connection failed, or something between here and the server.
export class NoServer extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

// JSON with whole numbers beyond 2^53 as texts: a seed has 64 bits, and a rounded one makes another picture.
export function parseJson(text) {
  const exact = text.replace(/"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g, (token) =>
    /^-?\d{16,}$/.test(token) ? `"${token}"` : token,
  );
  return JSON.parse(exact);
}

// A flat object whose fields in `numbers` are written as they stand, also beyond 2^53.
export function writeJson(fields, numbers) {
  const parts = Object.entries(fields).map(([name, value]) => {
    const plain = numbers.has(name) && /^\d+$/.test(String(value));
    return `${JSON.stringify(name)}:${plain ? value : JSON.stringify(value)}`;
  });
  return `{${parts.join(",")}}`;
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (keyInUse) headers.Authorization = `Bearer ${keyInUse}`;
  try {
    return await fetch(path, { ...options, headers, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new NoServer();
  }
}

// Returns a successful response, and asks the user for a key if the server requires one. A `quiet` call, which no
// user started, does not ask.
export async function call(path, { quiet = false, ...options } = {}) {
  const used = keyInUse;
  const response = await send(path, options);
  if (response.ok) return response;
  if (response.status === 401 && !quiet && (used !== keyInUse || (await askForKey()))) return call(path, options);
  let error = null;
  try {
    error = parseJson(await response.text()).error;
  } catch {
    // A proxy's page, not the server's answer.
  }
  throw new ApiError(response.status, error, Number(response.headers.get("retry-after")) || null);
}

export async function json(path, options) {
  return parseJson(await (await call(path, options)).text());
}

const randomHex = (bytes) =>
  Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// The accepted job. Sent again under one idempotency key where the connection fails, so it is never made twice.
export async function submit(body) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json", "Idempotency-Key": randomHex(16) },
    body,
  };
  try {
    return await json("v1/jobs", options);
  } catch (error) {
    if (!(error instanceof NoServer)) throw error;
    return json("v1/jobs", options);
  }
}

const UPLOAD_DEADLINE_MS = 300_000;

// Uploads a picture; returns the file as the server describes it. Its own name is not sent.
export async function upload(content, name) {
  const body = new FormData();
  body.append("purpose", "vision");
  body.append("file", content, name);
  return json("v1/files", { method: "POST", body, signal: AbortSignal.timeout(UPLOAD_DEADLINE_MS) });
}

// A page of the caller's jobs, newest first; `after` is the `next` of the page before, or empty.
export const jobs = (limit, after) => json(`v1/jobs?limit=${limit}&after=${after}`, { quiet: true });

export async function image(id) {
  return (await call(`v1/images/${encodeURIComponent(id)}`)).blob();
}

// The events of a job by name, as they come; returns at the end of the stream. (An EventSource cannot send a key.)
export async function* events(job, signal) {
  const response = await call(`v1/jobs/${encodeURIComponent(job)}/events`, { signal, quiet: true });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (waiting + value).split("\n\n");
      waiting = blocks.pop();
      for (const block of blocks) {
        const fields = new Map(block.split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
        if (fields.has("event")) yield { name: fields.get("event"), data: parseJson(fields.get("data") ?? "null") };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export function blobOf(base64, format) {
  return new Blob([Uint8Array.from(atob(base64), (char) => char.charCodeAt(0))], { type: `image/${format}` });
}
