// Parts that all views are made of. Text is only ever set as text.

import type { ComponentChildren, TargetedKeyboardEvent, VNode } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError, unreachable } from "./api";
import { type Route, useNow } from "./hooks";
import { plain, remedies } from "./remedy";
import { ago, clock, count, words } from "./text";

type Tone = "run" | "wait" | "ask" | "stop" | "bad" | "good" | "calm";

const tones: Record<string, Tone> = {
  POSTURE_RUNNING_TURN: "run", POSTURE_QUEUED_INPUT: "run", POSTURE_RUNNABLE_WORK: "run",
  POSTURE_WAITING_TASK: "wait", POSTURE_WAITING_EXTERNAL: "wait", POSTURE_WAITING_OPERATOR: "ask",
  POSTURE_BLOCKED: "bad", POSTURE_PAUSED: "stop", POSTURE_STOPPED: "stop", POSTURE_IDLE: "calm",
  STEP_STATUS_RUNNING: "run", STEP_STATUS_CLAIMED: "run", STEP_STATUS_READY: "wait", STEP_STATUS_COMPLETED: "good",
  STEP_STATUS_FAILED: "bad", STEP_STATUS_BLOCKED: "ask", STEP_STATUS_CANCELLED: "stop", STEP_STATUS_PENDING: "calm",
  BOARD_STATUS_RUNNING: "run", BOARD_STATUS_COMPLETED: "good", BOARD_STATUS_FAILED: "bad", BOARD_STATUS_BLOCKED: "ask",
  BOARD_STATUS_CANCELLED: "stop", BOARD_STATUS_PENDING: "calm",
  RUN_STATUS_RUNNING: "run", RUN_STATUS_FINISHED: "good", RUN_STATUS_LOST: "bad", RUN_STATUS_TIMED_OUT: "bad", RUN_STATUS_CANCELLED: "stop",
  TASK_STATE_QUEUED: "wait", TASK_STATE_RUNNING: "run", TASK_STATE_CANCELLING: "stop", TASK_STATE_COMPLETED: "good",
  TASK_STATE_FAILED: "bad", TASK_STATE_CANCELLED: "stop", TASK_STATE_INTERRUPTED: "bad",
  TURN_STATE_OPEN: "run", TURN_STATE_COMPLETED: "good", TURN_STATE_FAILED: "bad", TURN_STATE_INTERRUPTED: "ask", TURN_STATE_ABORTED: "stop",
  MESSAGE_STATE_QUARANTINED: "bad", MESSAGE_STATE_QUEUED: "wait", MESSAGE_STATE_DEQUEUED: "run", MESSAGE_STATE_PROCESSED: "good",
  KEY_STATUS_ACTIVE: "good", KEY_STATUS_REVOKED: "stop", KEY_STATUS_EXPIRED: "stop",
  READINESS_RUNNABLE: "run", READINESS_WAITING_FOR_OPERATOR: "ask", READINESS_BLOCKED: "wait", READINESS_COMPLETED: "good",
  SCHEDULING_STATE_RUNNABLE: "run", SCHEDULING_STATE_WAITING_OPERATOR: "ask", SCHEDULING_STATE_BLOCKED: "bad", SCHEDULING_STATE_COMPLETED: "good",
  SCHEDULING_STATE_WAITING_TASK: "wait", SCHEDULING_STATE_WAITING_EXTERNAL: "wait", SCHEDULING_STATE_WAITING_TIMER: "wait",
  PROCESS_ANSWER_READY: "good", PROCESS_ANSWER_NOT_READY: "ask", PROCESS_ANSWER_NONE: "bad",
};

/** toneOf returns the colour of a state. */
export const toneOf = (value: string | undefined): Tone => tones[value ?? ""] ?? "calm";

/** Badge shows a state as a word with its colour. */
export function Badge({ value, prefix, children }: { value?: string; prefix?: string; children?: ComponentChildren }) {
  if (!value && !children) return null;
  return <span class={"badge " + toneOf(value)}>{children ?? words(value, prefix ?? "")}</span>;
}

/** Age shows how long ago a time was; its title has the time. */
export function Age({ time }: { time?: string }) {
  const now = useNow();
  if (!time) return null;
  return <time dateTime={time} title={new Date(time).toLocaleString()}>{ago(time, now)}</time>;
}

/** Clock shows a time of day. */
export function Clock({ time }: { time?: string }) {
  return time ? <time dateTime={time} title={new Date(time).toISOString()}>{clock(time)}</time> : null;
}

/** Icon draws one of a few symbols. */
export function Icon({ name }: { name: keyof typeof icons }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={icons[name]} />
    </svg>
  );
}

const icons = {
  fleet: "M2 3h5v4H2zM9 3h5v4H9zM2 9h5v4H2zM9 9h5v4H9z",
  inbox: "M2 9l2-6h8l2 6v4H2zM2 9h4l1 2h2l1-2h4",
  events: "M2 4h12M2 8h8M2 12h10",
  admin: "M8 2l5 2v4c0 3-2 5-5 6-3-1-5-3-5-6V4z",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.5 1.5M11.5 11.5L13 13M13 3l-1.5 1.5M4.5 11.5L3 13",
  out: "M6 3H3v10h3M7 8h7M11 5l3 3-3 3",
  close: "M4 4l8 8M12 4l-8 8",
  left: "M10 3L5 8l5 5",
};

/** ErrorNote shows what the server refused, why, and what to do. */
export function ErrorNote({ error, again }: { error?: ApiError; again?: () => void }) {
  if (!error) return null;
  const lost = error.reason === unreachable;
  const facts = Object.entries(error.metadata ?? {}).filter(([k]) => k !== "field" && k !== "value"); // of which the message speaks
  const fields = error.fields?.filter((f) => !error.message.includes(f.description));
  return (
    <div class="note bad" role="alert">
      <p>
        <strong>{lost ? "The server cannot be reached." : plain(error.message, error.fields?.map((f) => f.field))}</strong>
        {lost ? " What is shown may be old. This page tries again by itself." : null}
      </p>
      {fields?.length ? <ul>{fields.map((f) => <li key={f.field}>{words(f.field, "")}: {plain(f.description, [f.field])}</li>)}</ul> : null}
      {lost ? null : (
        <p class="dim">
          <code>{error.reason}</code>
          {facts.map(([k, v]) => <span key={k}> · {k} <code>{v}</code></span>)}
          {error.status === 403 ? " · your credential may not do this; another role can." : null}
        </p>
      )}
      {lost ? null : <Remedies message={error.message} agent={error.metadata?.agent_id} />}
      {again ? <button type="button" onClick={again}>Try again</button> : null}
    </div>
  );
}

/** Remedies says where in the console the methods are that a message of the server names. */
export function Remedies({ message, agent }: { message?: string; agent?: string }) {
  const places = remedies(message ?? "", agent);
  if (!places.length) return null;
  return <p>In the console: {places.map((p, i) => <span key={p.title}>{i ? "; " : ""}{p.to ? <a href={p.to}>{p.title}</a> : p.title}</span>)}.</p>;
}

/** Empty says that there is nothing, and why that may be. */
export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

/** More says that there is more than is shown, and shows it. */
export function More({ shown, total, more, what }: { shown: number; total?: number; more?: () => void; what: string }) {
  if (!more) return null;
  return <p class="more"><button type="button" onClick={more}>Show more</button> <span class="dim">{count(shown)} {total && total > shown ? "of " + count(total) + " " : ""}{what} are shown.</span></p>;
}

/** Removed says that a list ends because older entries were removed. oldest is when the oldest one was made that is there. */
export function Removed({ removed, oldest, what }: { removed?: boolean; oldest?: string; what: string }) {
  if (!removed) return null;
  return <p class="dim">{oldest ? <>{what} before <Clock time={oldest} /> were removed</> : <>{what} were removed</>}: they are older than history is kept (<code>history-days</code>).</p>;
}

/** Loading stands for what is being read. */
export function Loading() {
  return <p class="empty" role="status">Loading…</p>;
}

/** Section is a titled part of a view. */
export function Section({ title, aside, children, id }: { title: string; aside?: ComponentChildren; children: ComponentChildren; id?: string }) {
  const heading = useId();
  return (
    <section class="section" aria-labelledby={heading} id={id}>
      <header>
        <h2 id={heading}>{title}</h2>
        {aside ? <div class="aside">{aside}</div> : null}
      </header>
      {children}
    </section>
  );
}

/** tabOf returns the tab that an address names: the first one, if there is none of that name. */
export function tabOf(tabs: { id: string }[], route: Route): string {
  const named = route.params.get("tab");
  return tabs.find((t) => t.id === named)?.id ?? tabs[0]!.id;
}

/** Tabs chooses one of several parts of a view. */
export function Tabs({ tabs, value, choose, label }: { tabs: { id: string; title: ComponentChildren }[]; value: string; choose: (id: string) => void; label: string }) {
  const row = useRef<HTMLDivElement>(null);
  // On a narrow screen the chosen one may be beyond the edge.
  useEffect(() => {
    const el = row.current!;
    const chosen = el.querySelector<HTMLElement>('[aria-selected="true"]');
    if (!chosen) return;
    const left = chosen.offsetLeft - el.offsetLeft;
    if (left < el.scrollLeft || left + chosen.offsetWidth > el.scrollLeft + el.clientWidth) el.scrollLeft = left - (el.clientWidth - chosen.offsetWidth) / 2;
  }, [value, tabs.length]);
  const move = (e: TargetedKeyboardEvent<HTMLDivElement>) => {
    const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    e.preventDefault();
    const i = (tabs.findIndex((t) => t.id === value) + step + tabs.length) % tabs.length;
    choose(tabs[i]!.id);
    (row.current?.children[i] as HTMLElement | undefined)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} ref={row} onKeyDown={move}>
      {tabs.map((t) => (
        <button key={t.id} type="button" role="tab" id={"tab-" + t.id} aria-controls="tabpanel" aria-selected={t.id === value} tabIndex={t.id === value ? 0 : -1} onClick={() => choose(t.id)}>
          {t.title}
        </button>
      ))}
    </div>
  );
}

/** Dialog is a modal window. Escape and the cross close it. */
export function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  const top = useRef<HTMLHeadingElement>(null);
  const heading = useId();
  const gone = useRef(false);
  useEffect(() => {
    const d = box.current;
    if (d && !d.open) {
      d.showModal();
      // Without a field that asks for the focus it would go to the first button, and the key that opened the window would press that.
      if (!d.querySelector("[autofocus]")) top.current?.focus();
    }
    return () => {
      gone.current = true; // the event of this comes later, when another window may be open
      d?.close();
    };
  }, []);
  return (
    <dialog ref={box} aria-labelledby={heading} onClose={() => gone.current || close()} onCancel={close}>
      <header>
        <h2 id={heading} ref={top} tabIndex={-1}>{title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick={close}><Icon name="close" /></button>
      </header>
      {children}
    </dialog>
  );
}

/** Field is a labelled input. */
export function Field({ label, hint, children }: { label: string; hint?: string; children: VNode }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint ? <small>{hint}</small> : null}
    </label>
  );
}

/** useAct runs an action, and has its error and whether it runs. */
export function useAct(done?: () => void) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError>();
  const run = async (f: () => Promise<unknown>) => {
    setBusy(true);
    setError(undefined);
    try {
      await f();
      done?.();
      return true;
    } catch (e) {
      setError(e instanceof ApiError ? e : new ApiError(0, "CLIENT", String(e)));
      return false;
    } finally {
      setBusy(false);
    }
  };
  return { busy, error, run, clear: () => setError(undefined) };
}

/** Confirm asks before an action, optionally for a reason. action says what is done, such as "Cancel the board", and keep that it is not. */
export function Confirm({ title, text, action, keep, withReason, danger, act, close }: {
  title: string; text: ComponentChildren; action: string; keep?: string; withReason?: boolean; danger?: boolean; act: (reason: string) => Promise<unknown>; close: () => void;
}) {
  const [reason, setReason] = useState("");
  const { busy, error, run } = useAct(close);
  return (
    <Dialog title={title} close={close}>
      <form onSubmit={(e) => { e.preventDefault(); void run(() => act(reason.trim())); }}>
        <p>{text}</p>
        {withReason ? <Field label="Reason (optional)"><input value={reason} maxLength={500} onInput={(e) => setReason(e.currentTarget.value)} /></Field> : null}
        <ErrorNote error={error} />
        <footer>
          <button type="button" onClick={close}>{keep ?? "Back"}</button>
          <button type="submit" class={danger ? "danger" : "primary"} disabled={busy}>{action}</button>
        </footer>
      </form>
    </Dialog>
  );
}

/** Action is a button of an action. Without the right to do it, it is disabled and says so. */
export function Action({ may, why, onClick, children, kind, disabled }: {
  may: boolean; why?: string; onClick: () => void; children: ComponentChildren; kind?: "primary" | "danger" | "quiet"; disabled?: boolean;
}) {
  if (!may) return null;
  return <button type="button" class={kind ?? ""} disabled={disabled} title={disabled ? why : undefined} onClick={onClick}>{children}</button>;
}

/** Prose shows a text of an agent or a person with its line breaks, long ones folded. */
export function Prose({ text, most = 1200 }: { text?: string; most?: number }) {
  const [all, setAll] = useState(false);
  if (!text) return null;
  const long = text.length > most;
  return (
    <div class="prose">
      {long && !all ? text.slice(0, most) + "…" : text}
      {long ? <button type="button" class="link" onClick={() => setAll(!all)}>{all ? "less" : "all of it (" + text.length.toLocaleString("en") + " characters)"}</button> : null}
    </div>
  );
}

/** Json shows a value as indented JSON, folded. */
export function Json({ label, value }: { label: string; value: unknown }) {
  const [open, setOpen] = useState(false);
  if (value === undefined || value === null) return null;
  return (
    <details onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>{label}</summary>
      {open ? <pre class="code" tabIndex={0}>{JSON.stringify(value, null, 2)}</pre> : null}
    </details>
  );
}

/** rowHeight is the height of a row of VirtualList in pixels, as in the style sheet. */
const rowHeight = 44;

/** VirtualList draws only the rows of a long list that can be seen, and asks for more near the end. height is that of its rows, if it is another one. */
export function VirtualList<T>({ rows, row, label, more, height = rowHeight }: { rows: T[]; row: (r: T, index: number) => VNode; label: string; more?: () => void; height?: number }) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const el = box.current!;
    let frame = 0;
    const measure = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => setView({ top: el.scrollTop, height: el.clientHeight }));
    };
    el.addEventListener("scroll", measure, { passive: true });
    const size = new ResizeObserver(measure);
    size.observe(el);
    measure();
    return () => {
      cancelAnimationFrame(frame);
      el.removeEventListener("scroll", measure);
      size.disconnect();
    };
  }, []);
  const first = Math.max(0, Math.floor(view.top / height) - 8);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / height) + 8);
  const nearEnd = last + 40 >= rows.length;
  useEffect(() => {
    if (nearEnd) more?.();
  }, [nearEnd, rows.length, more]);
  return (
    <div class="virtual" ref={box} tabIndex={0} role="list" aria-label={label}>
      <div style={{ height: rows.length * height + "px", "--row": height + "px" }} role="presentation">
        <div style={{ transform: `translateY(${first * height}px)` }} role="presentation">
          {rows.slice(first, last).map((r, i) => row(r, first + i))}
        </div>
      </div>
    </div>
  );
}
