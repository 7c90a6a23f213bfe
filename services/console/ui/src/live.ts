// The one event stream of a tab. The view that is shown says which events it wants; the stream goes on
// from its cursor after a broken connection, so that nothing is missed.

import { ApiError, lines, pause, query } from "./api";
import type { QuartetEvent } from "./types";

export interface Filter {
  agentId?: string;
  planes?: string[];
  eventTypes?: string[];
  workItemId?: string;
  /** fromStart sends what happened before, too. */
  fromStart?: boolean;
}

export interface Listener {
  /** events receives what happened, in batches, and of how many further events before the batch reset has said that they are missing. */
  events(batch: QuartetEvent[], missed: number): void;
  /**
   * reset says that things may have happened of which no event was received: the stream begins, and what was
   * read before is older than it, or it could not go on where it was. Read everything again.
   */
  reset(): void;
  /** became says whether the events of this view arrive. */
  became(s: State): void;
}

export type State = "idle" | "connecting" | "live" | "lost";

interface Watch {
  filter: Filter;
  listener: Listener;
  abort: AbortController;
}

/** sizes has of how many bytes, about, each event is that a view may keep. */
export const sizes = new WeakMap<QuartetEvent, number>();

let current: Watch | undefined;
let state: State = "idle";
let reason = "";
const observers = new Set<() => void>();

function become(s: State, why = "") {
  if (s === state && why === reason) return;
  state = s;
  reason = why;
  observers.forEach((f) => f());
}

/** liveState returns whether events arrive, and why not. */
export const liveState = () => ({ state, reason });

/** observe calls f when that changes, until the returned function is called. */
export function observe(f: () => void): () => void {
  observers.add(f);
  return () => observers.delete(f);
}

/** watch makes a view the one that receives events, until the returned function is called. */
export function watch(filter: Filter, listener: Listener): () => void {
  current?.abort.abort();
  const w: Watch = { filter, listener, abort: new AbortController() };
  current = w;
  void run(w);
  return () => {
    w.abort.abort();
    if (current === w) {
      current = undefined;
      become("idle");
    }
  };
}

/** batchTime is for how long events are collected, in milliseconds: a storm redraws a page five times a second. */
const batchTime = 200;
/** maxBatch is how many events are kept meanwhile, also in a tab whose timers the browser delays; above it the listener reads again. */
const maxBatch = 2000;
/** maxBatchSize is how many bytes they may have. */
const maxBatchSize = 8 << 20;

async function run(w: Watch) {
  let cursor = "";
  let delay = 250;
  let batch: QuartetEvent[] = [];
  let size = 0; // bytes of the batch
  let missed = 0; // events since the last batch that were too many
  let timer: ReturnType<typeof setTimeout> | undefined;
  const flush = () => {
    timer = undefined;
    const b = batch;
    const m = missed;
    batch = [];
    size = missed = 0;
    if (m) w.listener.reset();
    w.listener.events(b, m);
  };
  const add = (e: QuartetEvent, bytes: number) => {
    if (batch.length >= maxBatch || size + bytes > maxBatchSize) {
      missed += batch.length;
      batch = [];
      size = 0;
    }
    batch.push(e);
    sizes.set(e, bytes);
    size += bytes;
    timer ??= setTimeout(flush, batchTime);
  };
  const own = (s: State, why = "") => {
    become(s, why);
    w.listener.became(s);
  };
  own("connecting");
  while (!w.abort.signal.aborted) {
    try {
      const path = "events" + query({
        agent_id: w.filter.agentId, planes: w.filter.planes?.join(","), event_types: w.filter.eventTypes?.join(","), work_item_id: w.filter.workItemId,
        cursor, from_start: !cursor && w.filter.fromStart,
      });
      const opened = () => {
        if (w.abort.signal.aborted) return;
        if (!cursor && !w.filter.fromStart) w.listener.reset();
        own("live");
        delay = 250;
      };
      for await (const { value: m, bytes } of lines<{ event?: QuartetEvent; heartbeatCursor?: string }>(path, w.abort.signal, opened)) {
        if (!m.event) {
          cursor = m.heartbeatCursor ?? cursor;
          continue;
        }
        cursor = m.event.cursor;
        add(m.event, bytes);
      }
      throw new ApiError(0, "UNREACHABLE", "the connection ended");
    } catch (e) {
      if (w.abort.signal.aborted) break;
      const err = e instanceof ApiError ? e : new ApiError(0, "UNREACHABLE", "the connection broke");
      if (err.reason.startsWith("CURSOR_")) {
        cursor = ""; // it is of journals that are not there any more
        w.listener.reset();
      }
      own("lost", err.message);
      if (err.status === 401 || err.status === 403) return;
      try {
        await pause(delay * (0.75 + Math.random() / 2), w.abort.signal);
      } catch {
        break;
      }
      delay = Math.min(delay * 2, 8000);
    }
  }
  clearTimeout(timer);
}
