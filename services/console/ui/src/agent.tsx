import { useState } from "preact/hooks";
import { get, mutate } from "./api";
import { agentPath } from "./fleet";
import { go, href, type Route, useLive, useRead } from "./hooks";
import { Lane } from "./lane";
import { Boards, Briefs, Children, Tasks } from "./lists";
import { useCan, whoMay } from "./session";
import { words } from "./text";
import { Transcript } from "./transcript";
import type { Agent, Message, Wait } from "./types";
import { Badge, Confirm, ErrorNote, Loading, tabOf, Tabs, useAct } from "./ui";
import { Waiting } from "./waiting";
import { Why } from "./why";
import { Work } from "./work";

interface AgentAnswer {
  agent: Agent;
  children?: Agent[];
  waits?: Wait[];
  totalWaits?: number;
}

/** AgentView shows one agent, and lets it be told things and controlled. */
export function AgentView({ id, route }: { id: string; route: Route }) {
  const can = useCan();
  const path = agentPath(id);
  const [version, setVersion] = useState(0);
  const [sent, setSent] = useState<string>();
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
  const tabs = [
    { id: "work", title: "Work" }, { id: "transcript", title: "Transcript" },
    { id: "waiting", title: <>Waiting {waits ? <b>{waits}</b> : null}</> }, { id: "tasks", title: "Tasks" },
    ...(can("BoardService/ListBoards") ? [{ id: "boards", title: "Boards" }] : []),
    { id: "children", title: <>Children {children ? <b>{children}</b> : null}</> },
    { id: "why", title: "Why" }, { id: "briefs", title: "Briefs" },
  ];
  const tab = tabOf(tabs, route);
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
      <Say agent={a} changed={changed} sent={(m) => setSent(m.messageId)} />
      <Tabs label="Parts of the agent" value={tab} choose={(t) => go(href(["agents", id], { tab: t }), true)} tabs={tabs} />
      <div id="tabpanel" role="tabpanel" aria-labelledby={"tab-" + tab} class="panel">
        {tab === "work" ? <><Work id={id} version={version} changed={changed} /><Lane id={id} version={version} total={a.lane?.queued ?? 0} sent={sent} /></> : null}
        {tab === "transcript" ? <Transcript id={id} version={version} /> : null}
        {tab === "waiting" ? <Waiting id={id} version={version} changed={changed} /> : null}
        {tab === "tasks" ? <Tasks id={id} version={version} ended={route.params.get("ended") === "1"} /> : null}
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
      {asking === "pause" ? <Confirm title={"Pause " + a.agentId} action="Pause the agent" withReason text="It starts no turns and still accepts input. An open turn continues." close={() => setAsking(undefined)}
        act={(reason) => mutate("POST", path + ":pause", { reason }).then(changed)} /> : null}
      {asking === "abort" ? <Confirm title={"Abort the turn of " + a.agentId} action="Abort the turn" danger withReason text="The open turn and its message end as aborted, and the agent is paused. Work items, waits and tasks stay." close={() => setAsking(undefined)}
        act={(reason) => mutate("POST", path + ":abortRun", { runId: a.currentRunId, reason }).then(changed)} /> : null}
      {asking === "stop" ? <Confirm title={"Stop " + a.agentId} action="Stop the agent" danger withReason text="The open turn ends, and the agent starts no turns and accepts no input but operators' and task results, until it is started again." close={() => setAsking(undefined)}
        act={(reason) => mutate("POST", path + ":stop", { reason }).then(changed)} /> : null}
    </div>
  );
}

/** Say sends a message to an agent. */
export function Say({ agent: a, changed, sent, workItemId, placeholder }: { agent: Pick<Agent, "agentId" | "visibility" | "lifecycle" | "currentTurnId">; changed: () => void; sent?: (m: Message) => void; workItemId?: string; placeholder?: string }) {
  const can = useCan();
  const [text, setText] = useState("");
  const [priority, setPriority] = useState("PRIORITY_NORMAL");
  const { busy, error, run } = useAct(changed);
  if (!can("AgentService/EnqueueMessage")) return null;
  if (a.lifecycle && a.lifecycle !== "LIFECYCLE_ACTIVE") return <p class="note">The agent is {words(a.lifecycle, "LIFECYCLE_")} and accepts no messages.</p>;
  if (a.visibility === "VISIBILITY_PRIVATE") return <p class="note">This is a private child: only its supervisor talks to it.</p>;
  const send = () => run(async () => {
    const r = await mutate<{ message?: Message }>("POST", agentPath(a.agentId) + "/messages", { kind: "MESSAGE_KIND_OPERATOR_PROMPT", text, priority, ...(workItemId ? { workItemId } : {}) });
    if (r.message) sent?.(r.message);
  }).then((ok) => {
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
