import { useEffect, useRef, useState } from "preact/hooks";
import { enc, get, query } from "./api";
import { Say, WaitCard } from "./agent";
import { agentPath, attentions, type FleetAgent, type Found } from "./fleet";
import { href, useRead } from "./hooks";
import { many, words } from "./text";
import type { Agent, Board, Message, Utterance, Wait } from "./types";
import { Age, Badge, Empty, ErrorNote, Loading, Prose, Section } from "./ui";

interface Asking {
  agent: FleetAgent;
  questions: Wait[];
  weak: Wait[];
  quarantined: Message[];
  boards: Board[];
}

/** most is how many agents that need a person are shown at a time. */
const most = 50;

/** every is how often the Inbox is read, in milliseconds. The server finds who needs a person, so no event is watched for it. */
const every = 2500;
/** trusted is for how many milliseconds failed messages and boards of an agent are not read again while it does the same. */
const trusted = 15_000;

/** Details are what a search does not return of an agent, and of which answer of the search they are. */
interface Details {
  of: string;
  at: number;
  quarantined: Message[];
  boards: Board[];
}

async function load(signal: AbortSignal, known: Map<string, Details>): Promise<{ list: Asking[]; total: number; incomplete: boolean }> {
  const found = await get<Found>("agents:search" + query({ page_size: most, attentions: Object.keys(attentions), include_waits: true }), signal);
  const agents = found.agents ?? [];
  const list = await Promise.all(agents.map(async (agent): Promise<Asking> => {
    const needs = (a: string) => agent.attentions?.includes(a);
    const of = JSON.stringify(agent);
    let d = known.get(agent.agentId);
    if (!d || d.of !== of || performance.now() - d.at > trusted) {
      const [failed, boards] = await Promise.all([
        needs("ATTENTION_QUARANTINED") ? get<{ messages?: Message[] }>(agentPath(agent.agentId) + "/messages" + query({ state: "MESSAGE_STATE_QUARANTINED", page_size: 20 }), signal) : {},
        needs("ATTENTION_STALLED_BOARD") ? get<{ boards?: Board[] }>("sessions/" + enc(agent.agentId) + "/boards?limit=100", signal).catch(() => ({})) : {},
      ]);
      d = {
        of, at: performance.now(), quarantined: (failed as { messages?: Message[] }).messages ?? [],
        boards: ((boards as { boards?: Board[] }).boards ?? []).filter((b) => b.diagnostics?.stalled || b.status === "BOARD_STATUS_BLOCKED"),
      };
      known.set(agent.agentId, d);
    }
    const waits = (agent.waits ?? []).filter((w) => w.mode !== "WAIT_MODE_INTENT");
    return {
      agent,
      questions: waits.filter((w) => w.kind === "WAIT_KIND_OPERATOR"),
      weak: waits.filter((w) => w.weakReason === "WEAK_REASON_NO_LIVE_TRIGGER" || w.weakReason === "WEAK_REASON_TRIGGER_DEAD"),
      quarantined: d.quarantined,
      boards: d.boards,
    };
  }));
  const shown = new Set(agents.map((a) => a.agentId));
  for (const id of known.keys()) if (!shown.has(id)) known.delete(id);
  return { list, total: found.total ?? 0, incomplete: !!found.incomplete };
}

/** Inbox shows what waits for a person, over all agents, and takes the answers. */
export function Inbox() {
  const [version, setVersion] = useState(0);
  const known = useRef(new Map<string, Details>());
  const changed = () => {
    known.current.clear();
    setVersion((v) => v + 1);
  };
  const inbox = useRead((s) => load(s, known.current), [], version);
  useEffect(() => {
    const t = setInterval(() => document.hidden || inbox.again(), every);
    return () => clearInterval(t);
  }, []);
  const d = inbox.data;
  const questions = d?.list.filter((x) => x.questions.length) ?? [];
  const failed = d?.list.filter((x) => x.quarantined.length) ?? [];
  const weak = d?.list.filter((x) => x.weak.length) ?? [];
  const boards = d?.list.filter((x) => x.boards.length) ?? [];
  const blocked = d?.list.filter((x) => x.agent.attentions?.includes("ATTENTION_BLOCKED") || (x.agent.attentions?.includes("ATTENTION_QUESTION") && !x.questions.length)) ?? [];
  const n = questions.length + failed.length + weak.length + boards.length + blocked.length;
  return (
    <div class="page">
      <header class="head"><div><h1>Inbox {d ? <span class="dim">{n ? many(n, "entry", "entries") : ""}</span> : null}</h1><p class="reason">What waits for a person, over all agents.</p></div></header>
      <ErrorNote error={inbox.error} again={inbox.again} />
      {!d && inbox.loading ? <Loading /> : null}
      {d && d.total > most ? <p class="note">{many(d.total, "agent")} need a person; the first {most} are shown.</p> : null}
      {d?.incomplete ? <p class="dim" role="status">Agents are still being looked at.</p> : null}
      {questions.length ? <Section title="Questions">{questions.map((x) => x.questions.map((w) => <Question key={w.waitId} agent={x.agent} wait={w} changed={changed} />))}</Section> : null}
      {failed.length ? (
        <Section title="Messages on which turns failed">
          {failed.map((x) => x.quarantined.map((m) => (
            <article key={m.messageId} class="message">
              <header><Badge value={m.state} prefix="MESSAGE_STATE_" /><a href={href(["agents", x.agent.agentId])}><strong>{x.agent.agentId}</strong></a><span class="dim">{words(m.kind, "MESSAGE_KIND_")} · <Age time={m.updatedAt ?? m.createdAt} /></span></header>
              <Prose text={m.text} most={500} />
              <p class="dim">{m.stateReason} No turn takes it any more. Say it again, differently, once the cause is gone.</p>
            </article>
          )))}
        </Section>
      ) : null}
      {weak.length ? <Section title="Waits that nothing ends">{weak.map((x) => x.weak.map((w) => <WaitCard key={w.waitId} wait={w}><a href={href(["agents", x.agent.agentId], { tab: "waiting" })}>{x.agent.agentId}</a></WaitCard>))}</Section> : null}
      {boards.length ? (
        <Section title="Boards that make no progress">
          <ul class="cards">{boards.map((x) => x.boards.map((b) => (
            <li key={x.agent.agentId + "/" + b.boardId}>
              <Badge value={b.status} prefix="BOARD_STATUS_" />
              <a href={href(["agents", x.agent.agentId, "boards", b.boardId])}><strong>{b.title || b.boardId}</strong></a>
              <span class="dim">{b.reason || (b.diagnostics?.stalledByStepIds?.length ? "stalled by " + b.diagnostics.stalledByStepIds.slice(0, 3).join(", ") : "")}</span>
            </li>
          )))}</ul>
        </Section>
      ) : null}
      {blocked.length ? (
        <Section title="Blocked">
          <ul class="cards">{blocked.map((x) => <li key={x.agent.agentId}><a href={href(["agents", x.agent.agentId])}><strong>{x.agent.agentId}</strong></a><span>{x.agent.postureReason}</span></li>)}</ul>
        </Section>
      ) : null}
      {d && !n ? <Empty>Nothing waits for a person.</Empty> : null}
    </div>
  );
}

function Question({ agent, wait: w, changed }: { agent: Agent; wait: Wait; changed: () => void }) {
  const [open, setOpen] = useState(false);
  const said = useRead<{ utterances?: Utterance[] } | undefined>((s) => (open ? get(agentPath(agent.agentId) + "/conversation" + query({ page_size: 8, work_item_id: w.workItemId }), s) : Promise.resolve(undefined)), [open]);
  return (
    <article class="message question">
      <header>
        <Badge value="POSTURE_WAITING_OPERATOR">asks</Badge>
        <a href={href(["agents", agent.agentId])}><strong>{agent.agentId}</strong></a>
        <span class="dim"><Age time={w.createdAt} />{w.workItemId ? <> · item <code>{w.workItemId}</code></> : null}</span>
      </header>
      <Prose text={w.reason} />
      <details onToggle={(e) => setOpen(e.currentTarget.open)}>
        <summary>Conversation</summary>
        <ErrorNote error={said.error} />
        {[...(said.data?.utterances ?? [])].reverse().map((u, i) => (
          <div key={i} class={"said " + (u.speaker === "SPEAKER_AGENT" ? "out" : "in")}><span class="speaker">{words(u.speaker, "SPEAKER_")}</span><Prose text={u.text} most={600} /></div>
        ))}
      </details>
      <Say agent={agent} workItemId={w.workItemId} changed={changed} placeholder={"Answer " + agent.agentId} />
    </article>
  );
}
