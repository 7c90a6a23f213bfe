import { get, query } from "./api";
import { agentPath } from "./fleet";
import { usePages, useRead } from "./hooks";
import { because, count, firstLine, many, words } from "./text";
import type { Message, Round, ToolCall, ToolResult, Turn } from "./types";
import { Age, Badge, Empty, ErrorNote, Json, Loading, Prose, Removed, Section } from "./ui";

/** Transcript shows the turns of an agent, newest first, each with its message and its rounds. */
export function Transcript({ id, version }: { id: string; version: number }) {
  const path = agentPath(id);
  const t = usePages<Turn>(async (page_token, page_size, s) => {
    const p = await get<{ turns?: Turn[]; nextPageToken?: string }>(path + "/turns" + query({ page_size, page_token }), s);
    return { rows: p.turns, next: p.nextPageToken };
  }, 40, [id], version);
  const r = usePages<Round>(async (page_token, page_size, s) => {
    const p = await get<{ rounds?: Round[]; nextPageToken?: string; historyRemoved?: boolean }>(path + "/rounds" + query({ page_size, page_token }), s);
    return { rows: p.rounds, next: p.nextPageToken, removed: p.historyRemoved };
  }, 40, [id], version);
  const m = useRead<{ messages?: Message[] }>((s) => get(path + "/messages?page_size=500", s), [id], version);
  const error = t.error ?? r.error ?? m.error;
  if (!t.data || !r.data || !m.data) return error ? <ErrorNote error={error} again={() => { t.again(); r.again(); m.again(); }} /> : <Loading />;
  const messages = new Map((m.data.messages ?? []).map((x) => [x.messageId, x]));
  const rounds = new Map<string, Round[]>();
  for (const x of r.data) rounds.set(x.turnId, [...(rounds.get(x.turnId) ?? []), x]);
  // Turns as far back as all their rounds were read; some have none.
  const turns = r.more ? t.data.slice(0, t.data.findLastIndex((x) => rounds.has(x.turnId)) + 1) : t.data;
  const oldest = Date.parse(r.data.at(-1)?.createdAt ?? new Date().toISOString());
  // The reason of a message is that of the last turn that took it.
  const last = new Map([...t.data].reverse().map((x) => [x.messageId ?? "", x.turnId]));
  return (
    <Section title="Transcript" aside={<span class="dim">newest turn first</span>}>
      <ErrorNote error={error} />
      {turns.length ? turns.map((x) => <TurnCard key={x.turnId} turn={x} message={messages.get(x.messageId ?? "")} last={last.get(x.messageId ?? "") === x.turnId} removed={r.removed && Date.parse(x.startedAt ?? "") < oldest} rounds={(rounds.get(x.turnId) ?? []).sort((a, b) => (a.index ?? 0) - (b.index ?? 0))} />)
        : <Empty>No turn was taken yet. A runner takes turns: <code>quartet run --agent {id}</code>, or one of your own.</Empty>}
      {t.more || r.more ? <p class="more"><button type="button" onClick={() => { t.more?.(); r.more?.(); }}>Earlier turns</button></p> : null}
      <Removed removed={r.removed} oldest={r.data.at(-1)?.createdAt} what={r.data.length ? "Rounds" : "All rounds"} />
    </Section>
  );
}

function TurnCard({ turn: t, message: m, last, rounds, removed }: { turn: Turn; message?: Message; last: boolean; rounds: Round[]; removed?: boolean }) {
  const gone = removed ? (t.rounds ?? 0) - rounds.length : 0;
  return (
    <article class="turn">
      <header>
        <Badge value={t.state} prefix="TURN_STATE_" />
        <span class="dim">
          {t.endReason ? words(t.endReason, "TURN_END_REASON_") + " · " : ""}{many(t.rounds ?? 0, "round")}{t.runnerId ? " · runner " + t.runnerId : ""} · <Age time={t.startedAt} />
        </span>
        <code class="aside">{t.turnId}</code>
      </header>
      {m ? (
        <div class="said in">
          <span class="speaker">{words(m.kind, "MESSAGE_KIND_")}</span>
          <Prose text={m.text || (m.data ? "(bytes, " + (m.contentType || "no media type") + ")" : "")} />
        </div>
      ) : null}
      {gone > 0 ? <p class="dim">{many(gone, "round")} removed</p> : null}
      {rounds.map((r) => <RoundCard key={r.index ?? 0} round={r} />)}
      {last && m?.stateReason && t.state !== "TURN_STATE_OPEN" && t.state !== "TURN_STATE_COMPLETED" ? <div class={"note" + (t.state === "TURN_STATE_FAILED" ? " bad" : "")}><p><strong>{because(m.stateReason)}</strong></p>{m.state === "MESSAGE_STATE_QUARANTINED" ? <p>No turn takes the message any more. Say it again, differently, once the cause is gone.</p> : null}</div> : null}
      {t.state === "TURN_STATE_OPEN" ? <p class="working" role="status">working…</p> : null}
    </article>
  );
}

function RoundCard({ round: r }: { round: Round }) {
  const results = new Map([...(r.toolResults ?? []), ...(r.localToolResults ?? [])].map((x) => [x.callId, x]));
  const usage = r.usage && (Number(r.usage.inputTokens ?? 0) || Number(r.usage.outputTokens ?? 0)) ? count(r.usage.inputTokens) + " → " + count(r.usage.outputTokens) + " tokens" : "";
  return (
    <div class="round">
      <div class="gutter" title={"round " + (r.index ?? 0)}>{r.index ?? 0}</div>
      <div>
        <div class="said out"><Prose text={r.text} /></div>
        {r.toolCalls?.map((c) => <Call key={c.callId} call={c} result={results.get(c.callId)} />)}
        {r.localToolCalls?.map((c) => <Call key={"l" + c.callId} call={c} result={results.get(c.callId)} local />)}
        {usage ? <p class="dim">{usage} · <Age time={r.createdAt} /></p> : null}
      </div>
    </div>
  );
}

function Call({ call: c, result: r, local }: { call: ToolCall; result?: ToolResult; local?: boolean }) {
  const failed = r?.status === "TOOL_STATUS_ERROR";
  return (
    <details class={"call" + (failed ? " failed" : "")}>
      <summary>
        <code>{c.name}</code>{local ? <span class="dim"> of the runner</span> : null}{" "}
        <span class="dim">{r ? firstLine(failed ? r.error?.message : r.summaryText, 160) : "runs, or its outcome is unknown"}</span>
      </summary>
      <Json label="arguments" value={c.arguments} />
      {failed ? <p class="note bad">{r?.error?.message} {r?.error?.recoveryHint}</p> : null}
      <Json label="result" value={r?.result} />
    </details>
  );
}
