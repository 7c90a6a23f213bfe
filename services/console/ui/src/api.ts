// The public REST API, as any program calls it. The session is a cookie that scripts cannot read;
// the header says that a page of the console sends the request.

const header = { "X-Quartet-Console": "1" };

/** root is where the server is, also behind a proxy that adds a prefix: the page is at <root>ui/. */
const root = new URL("../", document.baseURI);

/** ApiError is a refusal of the server, or that it cannot be reached. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
    message: string,
    readonly fields: { field: string; description: string }[] = [],
    readonly metadata: Record<string, string> = {},
  ) {
    super(message);
  }
}

/** unreachable says that no answer came. */
export const unreachable = "UNREACHABLE";

let onSignedOut = () => {};

/** whenSignedOut sets what is called if the server knows no session any more. */
export function whenSignedOut(f: () => void) {
  onSignedOut = f;
}

/** newId returns a request id, by which a repeated request is recognised. */
export function newId(): string {
  const b = crypto.getRandomValues(new Uint8Array(12));
  return "ui_" + Array.from(b, (x) => x.toString(16).padStart(2, "0")).join("");
}

async function send(method: string, path: string, body: unknown, signal?: AbortSignal, accept?: string): Promise<Response> {
  let resp: Response;
  try {
    resp = await fetch(new URL(path, root), {
      method,
      headers: { ...header, ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...(accept ? { Accept: accept } : {}) },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
      signal,
    });
  } catch (e) {
    if (signal?.aborted) throw e;
    throw new ApiError(0, unreachable, "the server cannot be reached");
  }
  if (resp.ok) return resp;
  let error = new ApiError(resp.status, "HTTP_" + resp.status, resp.statusText || "the server refused the request");
  try {
    const { error: e } = await resp.json();
    error = new ApiError(resp.status, e.reason, e.message, e.fields, e.metadata);
  } catch {
    // A proxy answered, in a form of its own.
  }
  if (resp.status === 401) onSignedOut();
  throw error;
}

async function json<T>(resp: Response): Promise<T> {
  const text = await resp.text();
  return (text ? JSON.parse(text) : {}) as T;
}

/** query makes a query string; fields without a value are left out. */
export function query(fields: Record<string, string | number | boolean | string[] | undefined>): string {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(fields)) {
    if (Array.isArray(v)) v.forEach((x) => q.append(k, x));
    else if (v !== undefined && v !== "" && v !== false) q.set(k, String(v));
  }
  const s = q.toString();
  return s ? "?" + s : "";
}

/** get reads. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return json<T>(await send("GET", "v1/" + path, undefined, signal));
}

/** mutate changes something. It is repeated, with the same request id, if no answer came. */
export async function mutate<T>(method: "POST" | "PATCH" | "PUT" | "DELETE", path: string, body: Record<string, unknown> = {}): Promise<T> {
  const withId = { requestId: newId(), ...body };
  for (let attempt = 0; ; attempt++) {
    try {
      return await json<T>(await send(method, "v1/" + path, withId));
    } catch (e) {
      if (!(e instanceof ApiError) || e.reason !== unreachable || attempt >= 3) throw e;
      await pause(300 * 2 ** attempt);
    }
  }
}

/** post is mutate for what has no request id. */
export async function post<T>(path: string, body: Record<string, unknown>): Promise<T> {
  return json<T>(await send("POST", "v1/" + path, body));
}

/** pause waits for some milliseconds. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const aborted = () => {
      clearTimeout(t);
      reject(new DOMException("aborted", "AbortError"));
    };
    const t = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, ms);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/** turnTime is for how many milliseconds lines are read before the page may do something else: a stream of the past has always a further one. */
const turnTime = 8;

/**
 * lines reads a stream of the API, {"result":…} a line, with about how many bytes each has. It ends with the stream; an {"error":…} is
 * thrown. However fast they come, the page can react meanwhile.
 */
export async function* lines<T>(path: string, signal: AbortSignal, opened?: () => void): AsyncGenerator<{ value: T; bytes: number }> {
  const resp = await send("GET", "v1/" + path, undefined, signal, "application/x-ndjson");
  opened?.();
  if (!resp.body) return;
  const reader = resp.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let began = performance.now();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop() ?? "";
      for (const line of parts) {
        if (!line) continue;
        if (performance.now() - began > turnTime) {
          await pause(0, signal);
          began = performance.now();
        }
        const m = JSON.parse(line);
        if (m.error) throw new ApiError(m.error.code, m.error.reason, m.error.message);
        yield { value: m.result as T, bytes: line.length };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** begin begins a session with a key or a one-time code. */
export async function begin(by: { key: string } | { code: string }): Promise<void> {
  await send("POST", "ui/session", by);
}

/** issuer returns the address of the identity provider with which people sign in, "" if there is none. */
export async function issuer(): Promise<string> {
  return (await json<{ issuer?: string }>(await send("GET", "ui/oidc", undefined))).issuer ?? "";
}

/** signInWith returns the address at which a sign-in with the identity provider begins, which then shows the current view. */
export function signInWith(): string {
  const view = location.hash.replace(/^#\/?/, "");
  return new URL("ui/oidc/start", root).href + (view.startsWith("code=") ? "" : query({ view }));
}

/** end ends the session. */
export async function end(): Promise<void> {
  await send("DELETE", "ui/session", undefined);
}

/** enc encodes a segment of a path. */
export const enc = encodeURIComponent;
