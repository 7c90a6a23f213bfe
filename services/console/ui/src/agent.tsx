import { useState } from "preact/hooks";
import { get, mutate, query } from "./api";
import { agentPath } from "./fleet";
import { go, href, type Route, useLive, useRead } from "./hooks";
import { useCan, whoMay } from "./session";
import { many, words } from "./text";
import { Transcript } from "./transcript";
import type { Agent, Board, Brief, Delegation, Message, Task, Timer, Trigger, Wait } from "./types";
import { Age, Badge, Clock, Confirm, Empty, ErrorNote, Loading, Prose, Section, Tabs, useAct } from "./ui";
import { Why } from "./why";
import { Work } from "./work";

const tabs = ["work", "transcript", "waiting", "tasks", "boards", "children", "why", "briefs"] as const;

interface AgentAnswer {
  agent: Agent;
  children?: Agent[];
  waits?: Wait[];
  totalWaits?: number;
}

/** AgentView shows one agent, and lets it be told things and controlled. */
export function AgentView({ id, route }: { id: string; route: Route }) {
  const can = useCan();
  const tab = route.params.get("tab") ?? "work";
  const path = agentPath(id);
  const [version, setVersion] = useState(0);
  const agent = useRead<AgentAnswer>((s) => get(path, s), [id], version);
  const changed = () => setVersion((v) => v + 1);
  useLive({ agentId: id }, changed, changed, can("EventService/WatchEvents"));
  const a = agent.data?.agent;
  if (!a) {
    return (
      <div class="page">
        <header class="head"><h1>{id}</h1></header>
        {agent.error ? <ErrorNote error={agent.error} again={agent.again} /> : <Loading />}
      </div>
    );
  }
  const children = agent.data?.children?.length ?? 0;
  const waits = agent.data?.totalWaits ?? 0;
  return (
    <div class="page">
      <header class="head">
        <div>
          <a class="back" href={href(["fleet"])}>Fleet</a>
          <h1>{a.agentId} <Badge value={a.posture} prefix="POSTURE_" /></h1>
          <p class="reason">{a.postureReason}</p>
        </div>
        <Controls agent={a} changed={changed} />
      </header>
      <ErrorNote error={agent.error} />
      <Say agent={a} changed={changed} />
      <Tabs label="Parts of the agent" value={tab} choose={(t) => go(href(["agents", id], { tab: t }), true)} tabs={[
        { id: "work", title: "Work" }, { id: "transcript", title: "Transcript" },
        { id: "waiting", title: <>Waiting {waits ? <b>{waits}</b> : null}</> }, { id: "tasks", title: "Tasks" },
        ...(can("BoardService/ListBoards") ? [{ id: "boards", title: "Boards" }] : []),
        { id: "children", title: <>Children {children ? <b>{children}</b> : null}</> },
        { id: "why", title: "Why" }, { id: "briefs", title: "Briefs" },
      ].filter((t) => (tabs as readonly string[]).includes(t.id))} />
      <div id="tabpanel" role="tabpanel" aria-labelledby={"tab-" + tab} class="panel">
        {tab === "work" ? <><Work id={id} version={version} changed={changed} /><Lane id={id} version={version} /></> : null}
        {tab === "transcript" ? <Transcript id={id} version={version} /> : null}
        {tab === "waiting" ? <Waiting id={id} version={version} changed={changed} /> : null}
        {tab === "tasks" ? <Tasks id={id} version={version} /> : null}
        {tab === "boards" ? <Boards id={id} version={version} /> : null}
        {tab === "children" ? <Children id={id} version={version} /> : null}
        {tab === "why" ? <Why id={id} version={version} /> : null}
        {tab === "briefs" ? <Briefs id={id} version={version} /> : null}
      </div>
    </div>
  );
}

/** Controls are what an operator may do to an agent. What is not possible now says why. */
function Controls({ agent: a, changed }: { agent: Agent; changed: () => void }) {
  const can = useCan();
  const [asking, setAsking] = useState<"abort" | "pause" | "stop">();
  const { busy, error, run } = useAct(changed);
  const path = agentPath(a.agentId);
  const over = a.lifecycle !== "LIFECYCLE_ACTIVE";
  if (!can("AgentService/PauseAgent")) return <p class="dim">Controls: {whoMay("AgentService/PauseAgent")}</p>;
  const paused = a.control === "CONTROL_PAUSED";
  const stopped = a.control === "CONTROL_STOPPED";
  return (
    <div>
      <div class="tools">
        {paused ? <button type="button" class="primary" disabled={busy} onClick={() => void run(() => mutate("POST", path + ":resume"))}>Resume</button> : null}
        {stopped ? <button type="button" class="primary" disabled={busy || over} onClick={() => void run(() => mutate("POST", path + ":start"))}>Start</button> : null}
        {!paused && !stopped ? <button type="button" disabled={busy || over} title={over ? "The agent is deleted." : ""} onClick={() => setAsking("pause")}>Pause</button> : null}
        {can("AgentService/AbortRun") ? <button type="button" disabled={!a.currentTurnId} title={a.currentTurnId ? "" : "No turn is open."} onClick={() => setAsking("abort")}>Abort</button> : null}
        {!stopped ? <button type="button" class="danger" disabled={over} title={over ? "The agent is deleted." : ""} onClick={() => setAsking("stop")}>Stop</button> : null}
      </div>
      <ErrorNote error={error} />
      {asking === "pause" ? <Confirm title={"Pause " + a.agentId} action="Pause" withReason text="It starts no turns and still accepts input. An open turn continues." close={() => setAsking(undefined)}
        act={(reason) => mutate("POST", path + ":pause", { reason }).then(changed)} /> : null}
      {asking === "abort" ? <Confirm title={"Abort the turn of " + a.agentId} action="Abort" danger withReason text="The open turn and its message end as aborted, and the agent is paused. Work items, waits and tasks stay." close={() => setAsking(undefined)}
        act={(reason) => mutate("POST", path + ":abortRun", { runId: a.currentRunId, reason }).then(changed)} /> : null}
      {asking === "stop" ? <Confirm title={"Stop " + a.agentId} action="Stop" danger withReason text="The open turn ends, and the agent starts no turns and accepts no input but operators' and task results, until it is started again." close={() => setAsking(undefined)}
        act={(reason) => mutate("POST", path + ":stop", { reason }).then(changed)} /> : null}
    </div>
  );
}

/** Say sends a message to an agent. */
export function Say({ agent: a, changed, workItemId, placeholder }: { agent: Pick<Agent, "agentId" | "visibility" | "lifecycle" | "currentTurnId">; changed: () => void; workItemId?: string; placeholder?: string }) {
  const can = useCan();
  const [text, setText] = useState("");
  const [priority, setPriority] = useState("PRIORITY_NORMAL");
  const { busy, error, run } = useAct(changed);
  if (!can("AgentService/EnqueueMessage")) return null;
  if (a.lifecycle && a.lifecycle !== "LIFECYCLE_ACTIVE") return <p class="note">The agent is {words(a.lifecycle, "LIFECYCLE_")} and accepts no messages.</p>;
  if (a.visibility === "VISIBILITY_PRIVATE") return <p class="note">This is a private child: only its supervisor talks to it.</p>;
  const send = () => run(() => mutate("POST", agentPath(a.agentId) + "/messages", { kind: "MESSAGE_KIND_OPERATOR_PROMPT", text, priority, ...(workItemId ? { workItemId } : {}) })).then((ok) => {
    if (!ok) return;
    setText("");
    setPriority("PRIORITY_NORMAL");
  });
  return (
    <form class="say" onSubmit={(e) => { e.preventDefault(); void send(); }}>
      <textarea aria-label={"Message to " + a.agentId} placeholder={placeholder ?? "Say something to " + a.agentId + " (Ctrl+Enter sends)"} rows={2} value={text} onInput={(e) => setText(e.currentTarget.value)}
        onKeyDown={(e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey) && text.trim()) { e.preventDefault(); void send(); } }} />
      <select aria-label="When" value={priority} onChange={(e) => setPriority(e.currentTarget.value)}>
        <option value="PRIORITY_NORMAL">in order</option>
        <option value="PRIORITY_NEXT">next</option>
        <option value="PRIORITY_INTERJECT">interject{a.currentTurnId ? " into the turn" : ""}</option>
      </select>
      <button type="submit" class="primary" disabled={busy || !text.trim()}>Send</button>
      <ErrorNote error={error} />
    </form>
  );
}

interface Part {
  id: string;
  version: number;
}

/** Lane shows what is queued for an agent, and what failed. */
function Lane({ id, version }: Part) {
  const queued = useRead<{ messages?: Message[] }>((s) => get(agentPath(id) + "/messages" + query({ state: "MESSAGE_STATE_QUEUED", page_size: 50 }), s), [id], version);
  const failed = useRead<{ messages?: Message[] }>((s) => get(agentPath(id) + "/messages" + query({ state: "MESSAGE_STATE_QUARANTINED", page_size: 20 }), s), [id], version);
  const list = [...(failed.data?.messages ?? []), ...(queued.data?.messages ?? [])];
  return (
    <Section title="Lane" aside={<span class="dim">messages that wait for a turn</span>}>
      <ErrorNote error={queued.error} />
      {list.length ? list.map((m) => (
        <article key={m.messageId} class="message">
          <header>
            <Badge value={m.state} prefix="MESSAGE_STATE_" /> <span>{words(m.kind, "MESSAGE_KIND_")}</span>
            <span class="dim">{words(m.origin, "ORIGIN_")} · {words(m.priority, "PRIORITY_")}{m.attempts ? " · " + many(m.attempts, "attempt") : ""} · <Age time={m.createdAt} /></span>
          </header>
          <Prose text={m.text} most={500} />
          {m.stateReason ? <p class="dim">{m.stateReason}</p> : null}
        </article>
      )) : <Empty>No message is queued.</Empty>}
    </Section>
  );
}

function Waiting({ id, version, changed }: Part & { changed: () => void }) {
  const can = useCan();
  const path = agentPath(id);
  const waits = useRead<{ waits?: Wait[] }>((s) => get(path + "/waits?page_size=200", s), [id], version);
  const triggers = useRead<{ triggers?: Trigger[] }>((s) => get(path + "/triggers?page_size=100", s), [id], version);
  const timers = useRead<{ timers?: Timer[] }>((s) => get(path + "/timers?page_size=100", s), [id], version);
  const { error, run } = useAct(changed);
  return (
    <>
      <ErrorNote error={error} />
      <Section title="Waits">
        <ErrorNote error={waits.error} />
        {waits.data?.waits?.length ? waits.data.waits.map((w) => <WaitCard key={w.waitId} wait={w}>
          {can("WaitingService/CancelWait") ? <button type="button" onClick={() => void run(() => mutate("POST", path + "/waits/" + w.waitId + ":cancel"))}>Cancel</button> : null}
        </WaitCard>) : <Empty>It waits for nothing.</Empty>}
      </Section>
      <Section title="Triggers" aside={<span class="dim">addresses that outside systems call</span>}>
        <ErrorNote error={triggers.error} />
        {triggers.data?.triggers?.length ? (
          <ul class="cards">{triggers.data.triggers.map((t) => (
            <li key={t.triggerId}>
              <strong>{t.description || t.triggerId}</strong>
              <span class="dim">{words(t.deliveryMode, "DELIVERY_MODE_")} · {many(Number(t.deliveryCount ?? 0), "delivery", "deliveries")}{t.lastDeliveredAt ? <> · last <Age time={t.lastDeliveredAt} /></> : null}{t.expiresAt ? <> · ends <Age time={t.expiresAt} /></> : null}</span>
              {can("WaitingService/CancelExternalTrigger") ? <button type="button" onClick={() => void run(() => mutate("POST", path + "/triggers/" + t.triggerId + ":cancel"))}>Revoke</button> : null}
            </li>
          ))}</ul>
        ) : <Empty>It has no triggers.</Empty>}
      </Section>
      <Section title="Timers">
        <ErrorNote error={timers.error} />
        {timers.data?.timers?.length ? (
          <ul class="cards">{timers.data.timers.map((t) => (
            <li key={t.timerId}>
              <strong>{t.description || t.timerId}</strong>
              <span class="dim">next <Age time={t.nextFireAt} />{t.every ? <> · every {t.every}</> : null} · fired {many(Number(t.fireCount ?? 0), "time")}</span>
              {can("WaitingService/CancelTimer") ? <button type="button" onClick={() => void run(() => mutate("POST", path + "/timers/" + t.timerId + ":cancel"))}>Cancel</button> : null}
            </li>
          ))}</ul>
        ) : <Empty>It has no timers.</Empty>}
      </Section>
    </>
  );
}

/** weak says why nothing ends a wait. */
const weak: Record<string, string> = {
  WEAK_REASON_NO_LIVE_TRIGGER: "Nothing can end this: the agent has no live trigger.",
  WEAK_REASON_TRIGGER_DEAD: "Nothing can end this: its trigger was cancelled or has expired.",
  WEAK_REASON_CHILD_ASKS: "It cannot end before its child, which asks something, is answered.",
  WEAK_REASON_SUPERVISOR_MUST_ANSWER: "Only the child's supervisor can answer.",
};

/** WaitCard shows one wait. */
export function WaitCard({ wait: w, children }: { wait: Wait; children?: preact.ComponentChildren }) {
  return (
    <article class="message">
      <header>
        <Badge value={w.kind === "WAIT_KIND_OPERATOR" ? "POSTURE_WAITING_OPERATOR" : "POSTURE_WAITING_EXTERNAL"}>{words(w.kind, "WAIT_KIND_")}</Badge>
        <span class="dim">{w.mode === "WAIT_MODE_INTENT" ? "interest, stops nothing · " : ""}since <Age time={w.createdAt} />{w.dueAt ? <> · due <Age time={w.dueAt} /></> : null}{w.triggered ? " · triggered" : ""}</span>
        <span class="aside">{children}</span>
      </header>
      <Prose text={w.reason || w.condition} />
      {w.resourceDescription || w.resource ? <p class="dim">for {w.resourceDescription} <code>{w.resource}</code></p> : null}
      {w.weakReason && w.weakReason !== "WEAK_REASON_UNSPECIFIED" ? <p class="note bad">{weak[w.weakReason] ?? words(w.weakReason, "WEAK_REASON_")}</p> : null}
    </article>
  );
}

function Tasks({ id, version }: Part) {
  const [all, setAll] = useState(false);
  const tasks = useRead<{ tasks?: Task[] }>((s) => get(agentPath(id) + "/tasks" + query({ page_size: 100, include_terminal: all }), s), [id, all], version);
  return (
    <Section title="Tasks" aside={<label class="check"><input type="checkbox" checked={all} onChange={(e) => setAll(e.currentTarget.checked)} /> also ended ones</label>}>
      <ErrorNote error={tasks.error} />
      {tasks.data?.tasks?.length ? (
        <ul class="cards">{tasks.data.tasks.map((t) => (
          <li key={t.taskId}>
            <Badge value={t.state} prefix="TASK_STATE_" />
            <a href={href(["agents", id, "tasks", t.taskId])}><strong class="mono">{t.label || t.taskId}</strong></a>
            <span class="dim">{words(t.kind, "TASK_KIND_")} · <Age time={t.createdAt} />{t.workerId ? " · on " + t.workerId : ""}{t.exitCode ? " · exit " + t.exitCode : ""} {t.queueMessage}</span>
          </li>
        ))}</ul>
      ) : tasks.loading ? <Loading /> : <Empty>{all ? "It never ran a command." : "No command of it is running."}</Empty>}
    </Section>
  );
}

function Boards({ id, version }: Part) {
  const boards = useRead<{ boards?: Board[] }>((s) => get("sessions/" + encodeURIComponent(id) + "/boards?include_terminal=true&limit=100", s), [id], version);
  return (
    <Section title="Boards">
      <ErrorNote error={boards.error} />
      {boards.data?.boards?.length ? (
        <ul class="cards">{boards.data.boards.map((b) => (
          <li key={b.boardId + b.createdAt}>
            <Badge value={b.status} prefix="BOARD_STATUS_" />
            <a href={href(["agents", id, "boards", b.boardId])}><strong>{b.title || b.boardId}</strong></a>
            {b.diagnostics?.stalled ? <span class="badge bad">stalled</span> : null}
            <span class="dim">{Object.entries(b.counts ?? {}).map(([k, n]) => n + " " + k).join(" · ")} · <Age time={b.updatedAt} /></span>
          </li>
        ))}</ul>
      ) : boards.loading ? <Loading /> : <Empty>It keeps no boards.</Empty>}
    </Section>
  );
}

function Children({ id, version }: Part) {
  const d = useRead<{ delegations?: Delegation[] }>((s) => get(agentPath(id) + "/delegations?page_size=100", s), [id], version);
  return (
    <Section title="Children" aside={<span class="dim">what it delegated</span>}>
      <ErrorNote error={d.error} />
      {d.data?.delegations?.length ? d.data.delegations.map((x) => (
        <article key={x.delegationId} class="message">
          <header>
            <Badge value={x.state === "DELEGATION_STATE_OPEN" ? "TASK_STATE_RUNNING" : x.outcome === "DELEGATION_OUTCOME_COMPLETED" ? "TASK_STATE_COMPLETED" : "TASK_STATE_CANCELLED"}>
              {x.state === "DELEGATION_STATE_OPEN" ? "open" : words(x.outcome, "DELEGATION_OUTCOME_")}
            </Badge>
            {x.childAgentId ? <a href={href(["agents", x.childAgentId])}><strong>{x.childAgentId}</strong></a> : null}
            <span class="dim"><Age time={x.createdAt} /></span>
          </header>
          <Prose text={x.label} />
          {x.questions?.map((q) => <p key={q.waitId} class="note">asks: {q.text}</p>)}
          <Prose text={x.resultSummary} />
        </article>
      )) : d.loading ? <Loading /> : <Empty>It delegated nothing.</Empty>}
    </Section>
  );
}

function Briefs({ id, version }: Part) {
  const b = useRead<{ briefs?: Brief[] }>((s) => get(agentPath(id) + "/briefs?page_size=50", s), [id], version);
  return (
    <Section title="Briefs">
      <ErrorNote error={b.error} />
      {b.data?.briefs?.length ? b.data.briefs.map((x) => (
        <article key={x.briefId} class="message">
          <header>
            <Badge value={x.kind === "BRIEF_KIND_FAILURE" ? "TASK_STATE_FAILED" : x.kind === "BRIEF_KIND_RESULT" ? "TASK_STATE_COMPLETED" : "TASK_STATE_QUEUED"}>{words(x.kind, "BRIEF_KIND_")}</Badge>
            <span class="dim"><Clock time={x.createdAt} /></span>
          </header>
          <Prose text={x.text} />
        </article>
      )) : b.loading ? <Loading /> : <Empty>It reported nothing yet.</Empty>}
    </Section>
  );
}
