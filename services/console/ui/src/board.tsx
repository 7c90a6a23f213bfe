import { useMemo, useState } from "preact/hooks";
import { enc, get, mutate } from "./api";
import { Graph } from "./graph";
import { href, useLive, useRead } from "./hooks";
import { useCan, whoMay } from "./session";
import { words } from "./text";
import type { Board, Dispatch, Step, WorkerRun } from "./types";
import { Age, Badge, Confirm, Dialog, Empty, ErrorNote, Field, Loading, Prose, Section, Tabs, useAct, VirtualList } from "./ui";

interface Inspection {
  board: Board;
  timeline?: string[];
  runs?: WorkerRun[];
  dispatches?: Dispatch[];
}

type Ask = "complete" | "fail" | "cancel" | "block" | "dispatch";

/** BoardView shows a board as it runs. */
export function BoardView({ session, id }: { session: string; id: string }) {
  const can = useCan();
  const path = "sessions/" + enc(session) + "/boards/" + enc(id);
  const [version, setVersion] = useState(0);
  const changed = () => setVersion((v) => v + 1);
  const read = useRead<Inspection>(async (s) => {
    const [inspection, full] = await Promise.all([get<Inspection>(path + ":inspect?timeline=200", s), get<{ board: Board }>(path, s)]);
    return { ...inspection, board: { ...inspection.board, ...full.board } };
  }, [session, id], version);
  useLive({ planes: ["board"] }, (b) => b.some((e) => e.sessionId === session || e.agentId === session) && changed(), changed, can("EventService/WatchEvents"));
  const [tab, setTab] = useState("graph");
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
      <Tabs label="Parts of the board" value={tab} choose={setTab} tabs={[
        { id: "graph", title: "Graph" }, { id: "steps", title: "Steps" }, { id: "timeline", title: "Timeline" },
        { id: "runs", title: <>Runs {d.runs?.length ? <b>{d.runs.length}</b> : null}</> }, { id: "dispatches", title: <>Dispatches {d.dispatches?.length ? <b>{d.dispatches.length}</b> : null}</> },
      ]} />
      <div id="tabpanel" role="tabpanel" aria-labelledby={"tab-" + tab} class="panel">
        {tab === "graph" ? (steps.length ? <Graph steps={steps} open={setPicked} /> : <Empty>It has no steps.</Empty>) : null}
        {tab === "steps" ? <Steps steps={steps} open={(s) => setPicked([s])} /> : null}
        {tab === "timeline" ? (d.timeline?.length ? <ol class="log plain">{d.timeline.map((t, i) => <li key={i}>{t}</li>)}</ol> : <Empty>Nothing happened yet.</Empty>) : null}
        {tab === "runs" ? <Runs path={path} runs={d.runs ?? []} changed={changed} /> : null}
        {tab === "dispatches" ? <Dispatches path={path} list={d.dispatches ?? []} changed={changed} /> : null}
      </div>
      {picked?.length === 1 ? <StepDialog step={steps.find((s) => s.stepId === picked[0])} over={over} patch={(op) => patch(op).then(changed)} close={() => setPicked(undefined)} /> : null}
      {picked && picked.length > 1 ? (
        <Dialog title={picked.length + " steps"} close={() => setPicked(undefined)}>
          <ul class="cards">{picked.slice(0, 200).map((s) => <li key={s}><button type="button" class="link" onClick={() => setPicked([s])}>{s}</button></li>)}</ul>
        </Dialog>
      ) : null}
      {ask === "block" ? <Confirm title="Block the board" action="Block" withReason text="No step is dispatched or claimed until it is reopened." close={() => setAsk(undefined)} act={(reason) => patch({ op: "OPERATION_KIND_BLOCK_BOARD", reason }).then(changed)} /> : null}
      {ask === "complete" || ask === "fail" || ask === "cancel" ? (
        <Confirm title={words(ask, "")[0]!.toUpperCase() + ask.slice(1) + " the board"} action={ask[0]!.toUpperCase() + ask.slice(1)} danger={ask !== "complete"} withReason
          text={ask === "complete" ? "It never changes again." : "Its workers are stopped, and it never changes again."} close={() => setAsk(undefined)} act={(reason) => mutate("POST", path + ":" + ask, { reason }).then(changed)} />
      ) : null}
      {ask === "dispatch" ? <DispatchDialog path={path} board={b} close={() => setAsk(undefined)} changed={changed} /> : null}
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

function StepDialog({ step: s, over, patch, close }: { step?: Step; over: boolean; patch: (op: Record<string, unknown>) => Promise<unknown>; close: () => void }) {
  const can = useCan();
  const { busy, error, run } = useAct(close);
  if (!s) return null;
  const stopped = s.status === "STEP_STATUS_BLOCKED" || s.status === "STEP_STATUS_FAILED";
  const waits = s.status === "STEP_STATUS_PENDING" || s.status === "STEP_STATUS_READY";
  return (
    <Dialog title={s.title || s.stepId} close={close}>
      <p><Badge value={s.status} prefix="STEP_STATUS_" /> <code>{s.stepId}</code>{s.required ? "" : " · not required"}</p>
      <Prose text={s.summary} />
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

function Runs({ path, runs, changed }: { path: string; runs: WorkerRun[]; changed: () => void }) {
  const can = useCan();
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

function DispatchDialog({ path, board: b, close, changed }: { path: string; board: Board; close: () => void; changed: () => void }) {
  const pools = [...new Set([b.defaultWorkerPoolId, ...(b.steps ?? []).map((s) => s.workerPoolId)].filter((p): p is string => !!p))];
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
        <Field label="Pool"><input list="pools" value={pool} onInput={(e) => setPool(e.currentTarget.value)} required /></Field>
        <datalist id="pools">{pools.map((p) => <option key={p} value={p} />)}</datalist>
        <Field label="Runs at a time"><input type="number" min={1} max={1000} value={parallel} onInput={(e) => setParallel(Number(e.currentTarget.value))} /></Field>
        <Field label="Instruction (optional)"><textarea rows={3} value={instruction} onInput={(e) => setInstruction(e.currentTarget.value)} /></Field>
        <ErrorNote error={error} />
        <footer><button type="button" onClick={close}>Cancel</button><button type="submit" class="primary" disabled={busy || !pool}>Dispatch</button></footer>
      </form>
    </Dialog>
  );
}
