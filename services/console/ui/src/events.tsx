import { useEffect, useRef, useState } from "preact/hooks";
import { go, href, type Route, useLive } from "./hooks";
import { sizes } from "./live";
import { useCan, whoMay } from "./session";
import { count, words } from "./text";
import type { QuartetEvent } from "./types";
import { Clock, Dialog, Empty, VirtualList } from "./ui";

/** kept is how many events are kept; older ones are dropped from the page. */
const kept = 2000;
/** keptBytes is how many bytes they may have, about: a round of a model may have a quarter of a MiB. */
const keptBytes = 24 << 20;

/** newest returns the first events that may be kept. */
function newest(list: QuartetEvent[]): QuartetEvent[] {
  let bytes = 0;
  let n = 0;
  while (n < list.length && n < kept && (bytes += sizes.get(list[n]!) ?? 0) <= keptBytes) n++;
  return list.slice(0, Math.max(n, Math.min(list.length, 1)));
}
const planes = ["agent", "work", "task", "waiting", "board"];

/** Events shows what happens as it happens. */
export function Events({ route }: { route: Route }) {
  const can = useCan();
  const agent = route.params.get("agent") ?? "";
  const plane = route.params.get("plane") ?? "";
  const type = route.params.get("type") ?? "";
  const past = route.params.get("past") === "1";
  const [typed, setTyped] = useState(agent);
  const [list, setList] = useState<QuartetEvent[]>([]);
  const [paused, setPaused] = useState(false);
  const [shown, setShown] = useState<QuartetEvent>();
  const [gap, setGap] = useState(false);
  const seen = useRef(0);
  const held = useRef<QuartetEvent[]>([]);
  const pressed = useRef(false);
  const may = can("EventService/WatchEvents");
  const began = useRef(false);
  useEffect(() => {
    setList([]);
    setGap(false);
    held.current = [];
    seen.current = 0;
    began.current = past;
  }, [agent, plane, type, past]);
  const set = (change: Record<string, string>) => {
    go(href(["events"], { agent, plane, type, past: past ? "1" : "", ...change }), true);
  };
  const state = useLive({ agentId: agent || undefined, planes: plane ? [plane] : undefined, eventTypes: type ? type.split(",") : undefined, fromStart: past }, (batch, missed) => {
    seen.current += batch.length + missed;
    batch.reverse();
    if (paused || pressed.current) held.current = newest(batch.concat(held.current));
    else setList((old) => newest(batch.concat(old)));
  }, () => {
    if (began.current) setGap(true);
    began.current = true;
  }, may);
  if (!may) return <div class="page"><p class="note">Events: {whoMay("EventService/WatchEvents")}</p></div>;
  const showHeld = () => {
    const more = held.current;
    held.current = [];
    if (more.length) setList((old) => newest(more.concat(old)));
  };
  const toggle = () => {
    showHeld();
    setPaused(!paused);
  };
  // While a button of the mouse is down nothing moves under it: a click begins and ends at the same row.
  const press = () => {
    pressed.current = true;
    const release = () => {
      removeEventListener("pointerup", release);
      removeEventListener("pointercancel", release);
      setTimeout(() => {
        pressed.current = false;
        if (!paused) showHeld();
      });
    };
    addEventListener("pointerup", release);
    addEventListener("pointercancel", release);
  };
  return (
    <div class="page fill">
      <header class="head">
        <h1>Events <span class="dim">{count(seen.current)} received{seen.current > kept ? ", the newest " + count(kept) + " shown" : ""}</span></h1>
        <form class="tools" onSubmit={(e) => { e.preventDefault(); set({ agent: typed.trim() }); }}>
          <input type="search" aria-label="Agent" placeholder="Agent" value={typed} onInput={(e) => setTyped(e.currentTarget.value)} onBlur={() => typed.trim() !== agent && set({ agent: typed.trim() })} />
          <select aria-label="Plane" value={plane} onChange={(e) => set({ plane: e.currentTarget.value })}>
            <option value="">all planes</option>
            {planes.map((p) => <option key={p} value={p}>{p}</option>)}
          </select>
          <label class="check"><input type="checkbox" checked={past} onChange={(e) => set({ past: e.currentTarget.checked ? "1" : "" })} /> from the beginning</label>
          <button type="button" aria-pressed={paused} onClick={toggle}>{paused ? "Go on" : "Hold"}</button>
        </form>
      </header>
      {type ? <p class="dim">only <code>{type}</code> <button type="button" class="link" onClick={() => set({ type: "" })}>all types</button></p> : null}
      {gap ? <p class="note">Some events were not shown: there were too many at once, or the stream could not go on where it was. <button type="button" class="link" onClick={() => setGap(false)}>Understood</button></p> : null}
      {past ? <p class="dim">What was removed because it is older than history is kept (<code>history-days</code>) is not among these.</p> : null}
      {list.length ? <div class="through" onPointerDown={press}><VirtualList rows={list} label="Events, newest first" row={(e) => <Row key={e.eventId} event={e} open={() => setShown(e)} />} /></div>
        : <Empty>{state === "live" ? "Nothing happened since this page was opened." : "Waiting for the stream of events…"}</Empty>}
      {shown ? (
        <Dialog title={words(shown.eventType, "")} close={() => setShown(undefined)}>
          <dl class="facts">
            {([["time", shown.createdAt], ["plane", shown.plane], ["agent", shown.agentId], ["item", shown.workItemId], ["task", shown.taskId], ["board", shown.sessionId], ["step", shown.stepId],
              ["by", shown.principal], ["readiness", shown.readinessTo ? words(shown.readinessFrom, "READINESS_") + " → " + words(shown.readinessTo, "READINESS_") : ""],
              ["request", shown.requestId], ["trace", shown.traceparent], ["event", shown.eventId]] as const).filter(([, v]) => v).map(([k, v]) => <div key={k}><dt>{k}</dt><dd class="mono">{v}</dd></div>)}
          </dl>
          <pre class="code" tabIndex={0}>{JSON.stringify(shown.payload ?? {}, null, 2)}</pre>
          <footer>
            <button type="button" onClick={() => { set({ type: shown.eventType }); setShown(undefined); }}>Only this type</button>
            {shown.agentId ? <a class="button" href={href(["agents", shown.agentId])}>Agent</a> : null}
          </footer>
        </Dialog>
      ) : null}
    </div>
  );
}

function Row({ event: e, open }: { event: QuartetEvent; open: () => void }) {
  return (
    <div class="row event" role="listitem">
      <span class="dim"><Clock time={e.createdAt} /></span>
      <span class={"plane " + e.plane}>{e.plane}</span>
      <button type="button" class="link" onClick={open}>{words(e.eventType, "")}</button>
      <span class="why">{e.agentId ? <a href={href(["agents", e.agentId])}>{e.agentId}</a> : e.sessionId} <span class="dim">{e.workItemId || e.taskId || e.stepId}</span></span>
      <span class="dim by">{e.principal}</span>
    </div>
  );
}

