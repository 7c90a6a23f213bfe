import { useMemo, useState } from "preact/hooks";
import { ApiError, enc, get, mutate } from "./api";
import { Graph } from "./graph";
import { go, href, type Route, useLive, usePoll, useRead } from "./hooks";
import { useCan, whoMay } from "./session";
import { many, words } from "./text";
import type { Board, BoardWorker, Dispatch, Step, WorkerRun } from "./types";
import { Age, Badge, Confirm, Dialog, Empty, ErrorNote, Field, Loading, More, Prose, Removed, Section, tabOf, Tabs, useAct, VirtualList } from "./ui";

interface Inspection {
  board: Board;
  timeline?: string[];
  runs?: WorkerRun[];
  dispatches?: Dispatch[];
  /** removed says that its log was removed, and with it its steps. */
  removed?: boolean;
}

/** timelineMost is how many lines of the timeline are shown. */
const timelineMost = 500;

type Ask = "complete" | "fail" | "cancel" | "block" | "dispatch";

/** BoardView shows a board as it runs. */
export function BoardView({ session, id, route }: { session: string; id: string; route: Route }) {
  const can = useCan();
  const path = "sessions/" + enc(session) + "/boards/" + enc(id);
  const [version, setVersion] = useState(0);
  const changed = () => setVersion((v) => v + 1);
  const read = useRead<Inspection>(async (s) => {
    const steps = get<{ board?: Board }>(path, s).catch((e: unknown) => {
      if (e instanceof ApiError && e.reason === "HISTORY_REMOVED") return { board: undefined };
      throw e;
    });
    const [inspection, full] = await Promise.all([get<Inspection>(path + ":inspect?timeline=" + timelineMost, s), steps]);
    return { ...inspection, board: { ...inspection.board, ...full.board }, removed: !full.board };
  }, [session, id], version);
  useLive({ planes: ["board"] }, (b) => b.some((e) => e.sessionId === session || e.agentId === session) && changed(), changed, can("EventService/WatchEvents"));
  const workers = usePoll<{ workers?: BoardWorker[] }>("board-workers", 10_000, can("BoardService/ListWorkers"));
  const [ask, setAsk] = useState<Ask>();
  const [picked, setPicked] = useState<string[]>();
  const { busy, error, run } = useAct(changed);
  const d = read.data;
  const steps = useMemo(() => d?.board.steps ?? [], [d]);
  if (!d) return <div class="page"><header class="head"><h1>{id}</h1></header>{read.error ? <ErrorNote error={read.error} again={read.again} /> : <Loading />}</div>;
  const b = d.board;
  const over = ["BOARD_STATUS_COMPLETED", "BOARD_STATUS_FAILED", "BOARD_STATUS_CANCELLED"].includes(b.status ?? "");
  const blocked = b.status === "BOARD_STATUS_BLOCKED";
  const ended = over ? "The board has ended." : "";
  const tabs = [
    { id: "graph", title: "Graph" }, { id: "steps", title: "Steps" }, { id: "timeline", title: "Timeline" },
    { id: "runs", title: <>Runs {d.runs?.length ? <b>{d.runs.length}{d.runs.length >= inspected ? "+" : ""}</b> : null}</> }, { id: "dispatches", title: <>Dispatches {d.dispatches?.length ? <b>{d.dispatches.length}</b> : null}</> },
  ];
  const tab = tabOf(tabs, route);
  const held = over || blocked ? [] : unclaimed(b, d.dispatches ?? [], workers.data && (workers.data.workers ?? []));
  const patch = (op: Record<string, unknown>) => mutate("PATCH", path, { operations: [op] });
  return (
    <div class="page">
      <header class="head">
        <div>
          <a class="back" href={href(["agents", session], { tab: "boards" })}>{session}</a>
          <h1>{b.title || id} <Badge value={b.status} prefix="BOARD_STATUS_" />{b.terminating ? <span class="badge stop">ending</span> : null}</h1>
          <p class="reason">
            {Object.entries(b.counts ?? {}).map(([k, n]) => n + " " + k).join(" · ")}{b.reason ? " — " + b.reason : ""}
            {b.diagnostics?.stalled ? <span class="badge bad">stalled by {b.diagnostics.stalledByStepIds?.slice(0, 3).join(", ")}</span> : null}
          </p>
        </div>
        <div class="tools">
          {can("BoardService/OpenStandingDispatch") ? <button type="button" class="primary" disabled={over || blocked} title={ended || (blocked ? "The board is blocked." : "")} onClick={() => setAsk("dispatch")}>Dispatch</button> : <span class="dim" title={"Dispatching: " + whoMay("BoardService/OpenStandingDispatch")}>Dispatch: {whoMay("BoardService/OpenStandingDispatch")}</span>}
          {can("BoardService/UpdateBoard") ? (blocked
            ? <button type="button" class="primary" disabled={busy} onClick={() => void run(() => patch({ op: "OPERATION_KIND_REOPEN_BOARD" }))}>Reopen</button>
            : <button type="button" disabled={over} title={ended} onClick={() => setAsk("block")}>Block</button>) : null}
          {can("BoardService/CompleteBoard") ? <button type="button" disabled={over || !b.diagnostics?.completeable} title={ended || (b.diagnostics?.completeable ? "" : "Not completed yet: " + (b.diagnostics?.notCompleteableByStepIds ?? []).slice(0, 5).join(", "))} onClick={() => setAsk("complete")}>Complete</button> : null}
          {can("BoardService/FailBoard") ? <button type="button" class="danger" disabled={over} title={ended} onClick={() => setAsk("fail")}>Fail</button> : null}
          {can("BoardService/CancelBoard") ? <button type="button" class="danger" disabled={over} title={ended} onClick={() => setAsk("cancel")}>Cancel</button> : null}
        </div>
      </header>
      <ErrorNote error={read.error} />
      <ErrorNote error={error} />
      <Prose text={b.summary} most={400} />
      {held.map((h) => <p key={h.pool} class="note" role="status">{many(h.steps.length, "step is", "steps are")} ready for the pool {h.pool}. <Why held={h} /></p>)}
      <Tabs label="Parts of the board" value={tab} choose={(t) => go(href(["agents", session, "boards", id], { tab: t }), true)} tabs={tabs} />
      <div id="tabpanel" role="tabpanel" aria-labelledby={"tab-" + tab} class="panel">
        <Removed removed={d.removed && tab !== "runs" && tab !== "dispatches"} what="The steps and the log of this board" />
        {d.removed ? null : tab === "graph" ? (steps.length ? <Graph steps={steps} open={setPicked} /> : <Empty>It has no steps.</Empty>) : null}
        {tab === "steps" && !d.removed ? <Steps steps={steps} open={(s) => setPicked([s])} /> : null}
        {tab === "timeline" && !d.removed ? (d.timeline?.length ? <>{d.timeline.length >= timelineMost ? <p class="dim">The last {timelineMost} lines; <code>quartet board wal read</code> has all.</p> : null}<ol class="log plain">{d.timeline.map((t, i) => <li key={i}>{t}</li>)}</ol></> : <Empty>Nothing happened yet.</Empty>) : null}
        {tab === "runs" ? <Runs path={path} runs={d.runs ?? []} version={version} changed={changed} /> : null}
        {tab === "dispatches" ? <Dispatches path={path} list={d.dispatches ?? []} changed={changed} /> : null}
      </div>
      {picked?.length === 1 ? <StepDialog step={steps.find((s) => s.stepId === picked[0])} held={held.find((h) => h.steps.includes(picked[0]!))} over={over} patch={(op) => patch(op).then(changed)} close={() => setPicked(undefined)} /> : null}
      {picked && picked.length > 1 ? (
        <Dialog title={picked.length + " steps"} close={() => setPicked(undefined)}>
          <ul class="cards">{picked.slice(0, 200).map((s) => <li key={s}><button type="button" class="link" onClick={() => setPicked([s])}>{s}</button></li>)}</ul>
          {picked.length > 200 ? <p class="dim">The first 200; all are in the tab Steps.</p> : null}
        </Dialog>
      ) : null}
      {ask === "block" ? <Confirm title="Block the board" action="Block the board" withReason text="No step is dispatched or claimed until it is reopened." close={() => setAsk(undefined)} act={(reason) => patch({ op: "OPERATION_KIND_BLOCK_BOARD", reason }).then(changed)} /> : null}
      {ask === "complete" || ask === "fail" || ask === "cancel" ? (
        <Confirm title={ask[0]!.toUpperCase() + ask.slice(1) + " the board"} action={ask[0]!.toUpperCase() + ask.slice(1) + " the board"} keep={ask === "complete" ? "Back" : "Keep it"} danger={ask !== "complete"} withReason
          text={ask === "complete" ? "It never changes again." : "Its workers are stopped, and it never changes again."} close={() => setAsk(undefined)} act={(reason) => mutate("POST", path + ":" + ask, { reason }).then(changed)} />
      ) : null}
      {ask === "dispatch" ? <DispatchDialog path={path} board={b} dispatches={d.dispatches ?? []} close={() => setAsk(undefined)} changed={changed} /> : null}
    </div>
  );
}

function Steps({ steps, open }: { steps: Step[]; open: (id: string) => void }) {
  const [text, setText] = useState("");
  const wanted = text.trim().toLowerCase();
  const rows = steps.filter((s) => !wanted || (s.stepId + " " + s.title + " " + words(s.status, "STEP_STATUS_")).toLowerCase().includes(wanted));
  return (
    <>
      <input type="search" aria-label="Search steps" placeholder="Search by id, title or status" value={text} onInput={(e) => setText(e.currentTarget.value)} />
      {rows.length ? <VirtualList rows={rows} label="Steps" row={(s) => (
        <div class="row step" role="listitem" key={s.stepId}>
          <Badge value={s.status} prefix="STEP_STATUS_" />
          <button type="button" class="link" onClick={() => open(s.stepId)}>{s.title || s.stepId}</button>
          <span class="why dim">{s.resultSummary || s.reason}</span>
          <span class="age"><Age time={s.updatedAt} /></span>
        </div>
      )} /> : <Empty>No step matches.</Empty>}
    </>
  );
}

function StepDialog({ step: s, held, over, patch, close }: { step?: Step; held?: Held; over: boolean; patch: (op: Record<string, unknown>) => Promise<unknown>; close: () => void }) {
  const can = useCan();
  const { busy, error, run } = useAct(close);
  if (!s) return null;
  const stopped = s.status === "STEP_STATUS_BLOCKED" || s.status === "STEP_STATUS_FAILED";
  const waits = s.status === "STEP_STATUS_PENDING" || s.status === "STEP_STATUS_READY";
  return (
    <Dialog title={s.title || s.stepId} close={close}>
      <p><Badge value={s.status} prefix="STEP_STATUS_" /> <code>{s.stepId}</code>{s.required ? "" : " · not required"}</p>
      <Prose text={s.summary} />
      {held ? <p class="note">It is ready for the pool {held.pool}. <Why held={held} /></p> : null}
      {s.reason ? <p class="blocked">{s.reason}</p> : null}
      {s.resultSummary ? <><h3>Result</h3><Prose text={s.resultSummary} /></> : null}
      <dl class="facts">
        {s.dependsOnStepIds?.length ? <div><dt>depends on</dt><dd class="mono">{s.dependsOnStepIds.join(", ")}</dd></div> : null}
        {s.workerPoolId ? <div><dt>pool</dt><dd>{s.workerPoolId}</dd></div> : null}
        {s.claimedByRunId ? <div><dt>held by</dt><dd class="mono">{s.claimedByRunId}</dd></div> : null}
        {s.artifactIds?.length ? <div><dt>artifacts</dt><dd class="mono">{s.artifactIds.join(", ")}</dd></div> : null}
      </dl>
      <ErrorNote error={error} />
      {can("BoardService/UpdateBoard") && !over ? (
        <footer>
          {stopped ? <button type="button" class="primary" disabled={busy} onClick={() => void run(() => patch({ op: "OPERATION_KIND_REOPEN_STEP", stepId: s.stepId }))}>Reopen</button> : null}
          {waits ? <button type="button" class="danger" disabled={busy} onClick={() => void run(() => patch({ op: "OPERATION_KIND_CANCEL_STEP", stepId: s.stepId }))}>Cancel the step</button> : null}
        </footer>
      ) : null}
    </Dialog>
  );
}

/** Held is why no worker claims the ready steps of a pool. */
interface Held {
  pool: string;
  steps: string[];
  /** dispatched says that a dispatch is open, and a worker is missing. */
  dispatched: boolean;
}

function Why({ held: h }: { held: Held }) {
  if (!h.dispatched) return <>No dispatch for it is open: no worker may claim a step of it.</>;
  return <>No worker of it is connected; <code>quartet worker --pool {h.pool}</code> connects one.</>;
}

/** unclaimed returns the pools with ready steps that nobody claims. Without workers it is not known which are connected. */
function unclaimed(b: Board, dispatches: Dispatch[], workers?: BoardWorker[]): Held[] {
  return readyByPool(b).flatMap(([pool, steps]) => {
    const dispatched = dispatches.some((x) => x.open && x.workerPoolId === pool);
    const connected = !workers || workers.some((w) => w.workerPoolIds?.includes(pool));
    return dispatched && connected ? [] : [{ pool, steps, dispatched }];
  });
}

/** readyByPool returns the ids of the steps that are ready, by pool. */
function readyByPool(b: Board): [string, string[]][] {
  const pools = new Map<string, string[]>();
  for (const s of b.steps ?? []) {
    if (s.status !== "STEP_STATUS_READY") continue;
    const pool = s.workerPoolId || b.defaultWorkerPoolId || "";
    pools.set(pool, [...(pools.get(pool) ?? []), s.stepId]);
  }
  return [...pools];
}

/** inspected is how many runs the server returns with a board, listed how many at most in a list of them. */
const inspected = 100;
const listed = 500;

function Runs({ path, runs: newest, version, changed }: { path: string; runs: WorkerRun[]; version: number; changed: () => void }) {
  const can = useCan();
  const [all, setAll] = useState(false);
  const list = useRead<{ runs?: WorkerRun[]; truncated?: boolean } | undefined>((s) => (all ? get(path + "/runs?limit=" + listed, s) : Promise.resolve(undefined)), [path, all], version);
  const runs = list.data?.runs ?? newest;
  const { busy, error, run } = useAct(changed);
  if (!runs.length) return <Empty>No worker has run yet.</Empty>;
  return (
    <Section title="Runs">
      <ErrorNote error={error} />
      <ul class="cards">{runs.map((r) => (
        <li key={r.runId}>
          <Badge value={r.status} prefix="RUN_STATUS_" />
          <strong class="mono">{r.claimedStepId || (r.status === "RUN_STATUS_RUNNING" ? "no step yet" : "no step")}</strong>
          <span class="dim">{r.workerId} · {r.workerPoolId} · <Age time={r.dispatchedAt} />{r.endReason ? " · " + words(r.endReason, "RUN_END_REASON_") : ""}</span>
          {r.status === "RUN_STATUS_RUNNING" && can("BoardService/CancelWorkerRun") ? <button type="button" disabled={busy || r.cancelling} title={r.cancelling ? "It was asked to stop." : ""} onClick={() => void run(() => mutate("POST", path + "/runs/" + enc(r.runId) + ":cancel"))}>Stop</button> : null}
          <Prose text={r.stepResultSummary || r.workerResult} most={300} />
        </li>
      ))}</ul>
      <ErrorNote error={list.error} />
      {!all && newest.length >= inspected ? <More shown={newest.length} what="runs, the newest," more={() => setAll(true)} /> : null}
      {list.data?.truncated ? <p class="dim">The newest {listed} are shown; the timeline has those before.</p> : null}
    </Section>
  );
}

function Dispatches({ path, list, changed }: { path: string; list: Dispatch[]; changed: () => void }) {
  const can = useCan();
  const { busy, error, run } = useAct(changed);
  if (!list.length) return <Empty>No pool may claim steps yet. Dispatching lets the workers of a pool claim them.</Empty>;
  return (
    <Section title="Standing dispatches">
      <ErrorNote error={error} />
      <ul class="cards">{list.map((x) => (
        <li key={x.dispatchId}>
          <Badge value={x.open ? "TASK_STATE_RUNNING" : "TASK_STATE_CANCELLED"}>{x.open ? "open" : "closed"}</Badge>
          <strong>{x.workerPoolId}</strong>
          <span class="dim">{x.running ?? 0} of {x.maxParallel} running · <Age time={x.openedAt} /></span>
          {x.open && can("BoardService/CloseStandingDispatch") ? <button type="button" disabled={busy} onClick={() => void run(() => mutate("POST", path + "/dispatches/" + enc(x.dispatchId) + ":close"))}>Close</button> : null}
        </li>
      ))}</ul>
    </Section>
  );
}

function DispatchDialog({ path, board: b, dispatches, close, changed }: { path: string; board: Board; dispatches: Dispatch[]; close: () => void; changed: () => void }) {
  // First those with steps that wait for a dispatch.
  const ready = readyByPool(b).map(([p]) => p);
  const waiting = ready.filter((p) => !dispatches.some((x) => x.open && x.workerPoolId === p));
  const pools = [...new Set([...waiting, ...ready, b.defaultWorkerPoolId, ...(b.steps ?? []).map((s) => s.workerPoolId)].filter((p): p is string => !!p))];
  const [pool, setPool] = useState(pools[0] ?? "");
  const [parallel, setParallel] = useState(4);
  const [instruction, setInstruction] = useState("");
  const { busy, error, run } = useAct(() => {
    changed();
    close();
  });
  return (
    <Dialog title="Dispatch" close={close}>
      <form onSubmit={(e) => { e.preventDefault(); void run(() => mutate("POST", path + "/dispatches", { workerPoolId: pool, maxParallel: parallel, ...(instruction.trim() ? { instruction } : {}) })); }}>
        <p>The workers of the pool claim steps of this board, each with a run of its own, until the dispatch is closed.</p>
        <Field label="Pool" hint="Lower-case letters, digits, - and _."><input list="pools" value={pool} onInput={(e) => setPool(e.currentTarget.value)} required /></Field>
        <datalist id="pools">{pools.map((p) => <option key={p} value={p} />)}</datalist>
        <Field label="Runs at a time"><input type="number" min={1} max={1000} value={parallel} onInput={(e) => setParallel(Number(e.currentTarget.value))} /></Field>
        <Field label="Instruction (optional)"><textarea rows={3} value={instruction} onInput={(e) => setInstruction(e.currentTarget.value)} /></Field>
        <ErrorNote error={error} />
        <footer><button type="button" onClick={close}>Back</button><button type="submit" class="primary" disabled={busy || !pool}>Dispatch</button></footer>
      </form>
    </Dialog>
  );
}
