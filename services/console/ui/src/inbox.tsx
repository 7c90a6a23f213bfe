import { useState } from "preact/hooks";
import { get, query } from "./api";
import { Say, WaitCard } from "./agent";
import { agentPath } from "./fleet";
import { href, useLive, useRead } from "./hooks";
import { useCan } from "./session";
import { many, words } from "./text";
import type { Agent, Message, Utterance, Wait } from "./types";
import { Age, Badge, Empty, ErrorNote, Loading, Prose, Section } from "./ui";

interface Asking {
  agent: Agent;
  questions: Wait[];
  weak: Wait[];
  quarantined: Message[];
}

/** most is how many agents that need a person are shown at a time. */
const most = 50;

async function load(signal: AbortSignal): Promise<{ list: Asking[]; more: boolean }> {
  const need: Agent[] = [];
  let token = "";
  let more = false;
  for (let pages = 0; pages < 4; pages++) {
    const p = await get<{ agents?: Agent[]; nextPageToken?: string }>("agents" + query({ page_size: 500, page_token: token }), signal);
    need.push(...(p.agents ?? []).filter((a) => a.lane?.quarantined || a.posture === "POSTURE_WAITING_OPERATOR" || a.posture === "POSTURE_WAITING_EXTERNAL" || a.posture === "POSTURE_BLOCKED"));
    token = p.nextPageToken ?? "";
    more = !!token || need.length > most;
    if (!token || need.length > most) break;
  }
  const list = await Promise.all(need.slice(0, most).map(async (agent): Promise<Asking> => {
    const path = agentPath(agent.agentId);
    const [full, failed] = await Promise.all([
      get<{ waits?: Wait[] }>(path, signal),
      agent.lane?.quarantined ? get<{ messages?: Message[] }>(path + "/messages" + query({ state: "MESSAGE_STATE_QUARANTINED", page_size: 20 }), signal) : { messages: [] },
    ]);
    const waits = (full.waits ?? []).filter((w) => w.mode !== "WAIT_MODE_INTENT");
    return {
      agent,
      questions: waits.filter((w) => w.kind === "WAIT_KIND_OPERATOR"),
      weak: waits.filter((w) => w.kind !== "WAIT_KIND_OPERATOR" && w.weakReason && w.weakReason !== "WEAK_REASON_UNSPECIFIED"),
      quarantined: failed.messages ?? [],
    };
  }));
  return { list: list.filter((x) => x.questions.length || x.weak.length || x.quarantined.length || x.agent.posture === "POSTURE_BLOCKED"), more };
}

/** Inbox shows what waits for a person, over all agents, and takes the answers. */
export function Inbox() {
  const can = useCan();
  const [version, setVersion] = useState(0);
  const changed = () => setVersion((v) => v + 1);
  const inbox = useRead(load, [], version, 1000);
  useLive({ planes: ["agent", "waiting", "work"] }, changed, changed, can("EventService/WatchEvents"));
  const d = inbox.data;
  const questions = d?.list.filter((x) => x.questions.length) ?? [];
  const failed = d?.list.filter((x) => x.quarantined.length) ?? [];
  const weak = d?.list.filter((x) => x.weak.length) ?? [];
  const blocked = d?.list.filter((x) => x.agent.posture === "POSTURE_BLOCKED" && !x.questions.length) ?? [];
  const n = questions.length + failed.length + weak.length + blocked.length;
  return (
    <div class="page">
      <header class="head"><div><h1>Inbox {d ? <span class="dim">{n ? many(n, "entry", "entries") : ""}</span> : null}</h1><p class="reason">What waits for a person, over all agents.</p></div></header>
      <ErrorNote error={inbox.error} again={inbox.again} />
      {!d && inbox.loading ? <Loading /> : null}
      {d?.more ? <p class="note">There are more than are shown.</p> : null}
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
