import { useEffect, useRef, useState } from "preact/hooks";
import { enc, get, query } from "./api";
import { Say } from "./agent";
import { agentPath, attentions, type FleetAgent, type Found } from "./fleet";
import { href, usePages, useRead } from "./hooks";
import { because, many, words } from "./text";
import type { Agent, Board, Message, Utterance, Wait } from "./types";
import { Age, Badge, Empty, ErrorNote, Loading, More, Prose, Removed, Section } from "./ui";
import { WaitCard } from "./waiting";

interface Asking {
  agent: FleetAgent;
  questions: Wait[];
  weak: Wait[];
  quarantined: Message[];
  boards: Board[];
}

/** step is how many agents that need a person are shown at first, and further ones each time; a page has as many. */
const step = 50;
/** failedMost is how many failed messages of an agent are shown. */
const failedMost = 20;

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

async function load(signal: AbortSignal, known: Map<string, Details>, most: number): Promise<{ list: Asking[]; total: number; incomplete: boolean }> {
  const agents: FleetAgent[] = [];
  let found: Found;
  let page_token = "";
  do {
    found = await get<Found>("agents:search" + query({ page_size: step, page_token, attentions: Object.keys(attentions), include_waits: true }), signal);
    agents.push(...(found.agents ?? []));
    page_token = found.nextPageToken ?? "";
  } while (page_token && agents.length < most);
  const list = await Promise.all(agents.map(async (agent): Promise<Asking> => {
    const needs = (a: string) => agent.attentions?.includes(a);
    const of = JSON.stringify(agent);
    let d = known.get(agent.agentId);
    if (!d || d.of !== of || performance.now() - d.at > trusted) {
      const [failed, boards] = await Promise.all([
        needs("ATTENTION_QUARANTINED") ? get<{ messages?: Message[] }>(agentPath(agent.agentId) + "/messages" + query({ state: "MESSAGE_STATE_QUARANTINED", page_size: failedMost }), signal) : {},
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
  const [most, setMost] = useState(step);
  const [sent, setSent] = useState("");
  const title = useRef<HTMLHeadingElement>(null);
  const known = useRef(new Map<string, Details>());
  const changed = () => {
    known.current.clear();
    setVersion((v) => v + 1);
  };
  const inbox = useRead((s) => load(s, known.current, most), [], version);
  const answered = (agent: string) => {
    setSent(agent);
    title.current?.focus(); // what was answered goes away, and the focus would with it
  };
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
      <header class="head"><div><h1 ref={title} tabIndex={-1}>Inbox {d ? <span class="dim">{n ? many(n, "entry", "entries") : ""}</span> : null}</h1><p class="reason">What waits for a person, over all agents.</p></div></header>
      <p role="status" class={sent ? "note good" : "sr"}>{sent ? <>Your answer to <a href={href(["agents", sent])}>{sent}</a> was sent.</> : null}</p>
      <ErrorNote error={inbox.error} again={inbox.again} />
      {!d && inbox.loading ? <Loading /> : null}
      {d?.incomplete ? <p class="dim" role="status">Agents are still being looked at.</p> : null}
      {questions.length ? <Section title="Questions">{questions.map((x) => x.questions.map((w) => <Question key={w.waitId} agent={x.agent} wait={w} changed={changed} sent={() => answered(x.agent.agentId)} />))}</Section> : null}
      {failed.length ? (
        <Section title="Messages on which turns failed">
          {failed.map((x) => x.quarantined.map((m) => (
            <article key={m.messageId} class="message">
              <header><Badge value={m.state} prefix="MESSAGE_STATE_" /><a href={href(["agents", x.agent.agentId])}><strong>{x.agent.agentId}</strong></a><span class="dim">{words(m.kind, "MESSAGE_KIND_")} · <Age time={m.updatedAt ?? m.createdAt} /></span></header>
              <Prose text={m.text} most={500} />
              {m.stateReason ? <p>{because(m.stateReason)}</p> : null}
              <p class="dim">No turn takes it any more. Say it again, differently, once the cause is gone.</p>
            </article>
          )))}
          {failed.filter((x) => x.quarantined.length >= failedMost).map((x) => <p key={x.agent.agentId} class="more"><a href={href(["agents", x.agent.agentId])}>All that failed of {x.agent.agentId}</a></p>)}
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
      <More shown={d?.list.length ?? 0} total={d?.total} what="agents" more={d && d.total > d.list.length ? () => { setMost(d.list.length + step); setVersion((v) => v + 1); } : undefined} />
      {d && !n ? <Empty>Nothing waits for a person.</Empty> : null}
    </div>
  );
}

function Question({ agent, wait: w, changed, sent }: { agent: Agent; wait: Wait; changed: () => void; sent: () => void }) {
  const [open, setOpen] = useState(false);
  const said = usePages<Utterance>(async (page_token, page_size, s) => {
    if (!open) return {};
    const p = await get<{ utterances?: Utterance[]; nextPageToken?: string; historyRemoved?: boolean }>(agentPath(agent.agentId) + "/conversation" + query({ page_size, page_token, work_item_id: w.workItemId }), s);
    return { rows: p.utterances, next: p.nextPageToken, removed: p.historyRemoved };
  }, 8, [open]);
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
        {said.more ? <p><button type="button" class="link" onClick={said.more}>Earlier</button></p> : null}
        <Removed removed={said.removed} oldest={said.data?.at(-1)?.createdAt} what={said.data?.length ? "Words" : "All words"} />
        {[...(said.data ?? [])].reverse().map((u, i) => (
          <div key={i} class={"said " + (u.speaker === "SPEAKER_AGENT" ? "out" : "in")}><span class="speaker">{words(u.speaker, "SPEAKER_")}</span><Prose text={u.text} most={600} /></div>
        ))}
      </details>
      <Say agent={agent} workItemId={w.workItemId} changed={changed} sent={sent} placeholder={"Answer " + agent.agentId} />
    </article>
  );
}
