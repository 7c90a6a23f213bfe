// State of views: the route, what was read, and time.

import { useCallback, useEffect, useReducer, useRef, useState } from "preact/hooks";
import { ApiError, get, unreachable } from "./api";
import { type Filter, liveState, observe, type State, watch } from "./live";
import type { QuartetEvent } from "./types";

/** Route is the view that the address names: #/agents/keeper?tab=why is path [agents, keeper]. */
export interface Route {
  path: string[];
  params: URLSearchParams;
}

function parseRoute(): Route {
  const [path = "", q = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decode), params: new URLSearchParams(q) };
}

function decode(s: string): string {
  try {
    return decodeURIComponent(s);
  } catch {
    return s;
  }
}

/** href returns the address of a view within the console. */
export function href(path: string[], params: Record<string, string | undefined> = {}): string {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params)) if (v) q.set(k, v);
  return "#/" + path.map(encodeURIComponent).join("/") + (q.size ? "?" + q : "");
}

/** go shows another view. replace keeps no entry in the history for the current one. */
export function go(to: string, replace = false) {
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = to;
}

export function useRoute(): Route {
  const [route, set] = useState(parseRoute);
  useEffect(() => {
    const changed = () => set(parseRoute());
    addEventListener("hashchange", changed);
    changed(); // it may have changed since the view was drawn
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

export interface Read<T> {
  data?: T;
  error?: ApiError;
  loading: boolean;
  /** again reads once more; calls in quick succession are one read. */
  again(): void;
}

/** restBetween is the least time between two reads of the same thing, in milliseconds: what changes all the time is read once in it. */
const restBetween = 700;
/** restMost is the longest; a read that takes long is repeated after ten times as long, up to that. */
const restMost = 3000;

/**
 * useRead reads something when the view appears, when keys change, and soon after version changes. What was
 * read stays until the next answer; one read runs at a time, and one that just ended is not repeated at once. While
 * the server cannot be reached it tries again by itself.
 */
export function useRead<T>(read: (signal: AbortSignal) => Promise<T>, keys: unknown[], version = 0, quiet = 300): Read<T> {
  const [state, set] = useState<{ data?: T; error?: ApiError; loading: boolean }>({ loading: true });
  const latest = useRef(read);
  latest.current = read;
  const own = useRef<{ abort: AbortController; again: (ms: number) => void } | undefined>(undefined);
  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let reading = false;
    let wanted = false;
    let earliest = 0;
    const again = (ms: number) => {
      if (reading) wanted = true;
      else timer ??= setTimeout(start, Math.max(ms, earliest - performance.now()));
    };
    const start = async () => {
      const began = performance.now();
      timer = undefined;
      reading = true;
      wanted = false;
      let retry = false;
      try {
        const data = await latest.current(abort.signal);
        if (!abort.signal.aborted) set({ data, loading: false });
      } catch (e) {
        if (abort.signal.aborted) return;
        const error = e instanceof ApiError ? e : new ApiError(0, "CLIENT", String(e));
        set((s) => ({ data: s.data, error, loading: false }));
        retry = error.reason === unreachable || error.status === 503;
      } finally {
        reading = false;
        const ended = performance.now();
        earliest = ended + Math.min(Math.max(10 * (ended - began), restBetween), restMost);
      }
      if (!abort.signal.aborted && (wanted || retry)) again(retry ? 1500 : quiet);
    };
    own.current = { abort, again };
    set({ loading: true });
    void start();
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, keys);
  const first = useRef(version);
  useEffect(() => {
    if (version !== first.current) own.current?.again(quiet);
    first.current = version;
  }, [version]);
  const again = useCallback(() => own.current?.again(quiet), [quiet]);
  return { ...state, again };
}

/** Pages is the beginning of a list that the server has in pages. */
export interface Pages<T> extends Read<T[]> {
  /** more reads further ones; undefined if there are none. */
  more?: () => void;
  /** removed says that the list ends here because older entries were removed. */
  removed?: boolean;
}

/**
 * usePages reads a list as useRead does, as far as it was asked for: a number of rows at first, and as many again with each call of more. page
 * returns the rows of a page and the token of the next one, empty at the end, and there whether older ones were removed.
 */
export function usePages<T>(page: (token: string, size: number, signal: AbortSignal) => Promise<{ rows?: T[]; next?: string; removed?: boolean }>, step: number, keys: unknown[], version = 0): Pages<T> {
  const key = JSON.stringify(keys);
  const [asked, ask] = useState({ key, rows: step });
  const wanted = asked.key === key ? asked.rows : step;
  const read = useRead(async (signal) => {
    const rows: T[] = [];
    let token = "";
    let removed: boolean | undefined;
    do {
      const p = await page(token, Math.min(500, wanted - rows.length), signal);
      rows.push(...(p.rows ?? []));
      token = p.next ?? "";
      removed = p.removed;
    } while (token && rows.length < wanted);
    return { key, rows, end: !token, removed };
  }, [key, wanted], version);
  // While further ones are read the list stays.
  const last = useRef(read.data);
  if (read.data) last.current = read.data;
  const d = last.current?.key === key ? last.current : undefined;
  return { ...read, data: d?.rows, more: d && !d.end ? () => ask({ key, rows: d.rows.length + step }) : undefined, removed: d?.removed };
}

/**
 * useLive receives the events of a filter while the view is shown, and returns whether they arrive: "live" from the
 * moment at which the server has begun the stream of this filter. reset is as in Listener.
 */
export function useLive(filter: Filter, events: (batch: QuartetEvent[], missed: number) => void, reset: () => void, on = true): State {
  const latest = useRef({ events, reset });
  latest.current = { events, reset };
  const key = JSON.stringify(filter);
  const [of, became] = useState<{ key: string; state: State }>({ key, state: "idle" });
  useEffect(() => {
    if (!on) return;
    return watch(JSON.parse(key) as Filter, {
      events: (b, missed) => latest.current.events(b, missed),
      reset: () => latest.current.reset(),
      became: (state) => became({ key, state }),
    });
  }, [key, on]);
  return of.key === key ? of.state : "idle";
}

/** usePoll reads something from time to time while the page is seen. */
export function usePoll<T>(path: string, ms: number, on = true) {
  const r = useRead<T | undefined>((s) => (on ? get<T>(path, s) : Promise.resolve(undefined)), [path, on]);
  useEffect(() => {
    if (!on) return;
    const t = setInterval(() => document.hidden || r.again(), ms);
    return () => clearInterval(t);
  }, [path, on, ms]);
  return r;
}

/** useLiveState returns whether events arrive. */
export function useLiveState() {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => observe(() => redraw(0)), []);
  return liveState();
}

/** useMedia returns whether the window is as a media query says. */
export function useMedia(query: string): boolean {
  const [is, set] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const m = matchMedia(query);
    const changed = () => set(m.matches);
    m.addEventListener("change", changed);
    changed();
    return () => m.removeEventListener("change", changed);
  }, [query]);
  return is;
}

/** useNow redraws a view from time to time, for ages. */
export function useNow(every = 5000): number {
  const [now, set] = useState(Date.now);
  useEffect(() => {
    const t = setInterval(() => set(Date.now()), every);
    return () => clearInterval(t);
  }, [every]);
  return now;
}
