import { useState } from "preact/hooks";
import { get, query } from "./api";
import { agentPath } from "./fleet";
import { useRead } from "./hooks";
import { count, firstLine, many, words } from "./text";
import type { Message, Round, ToolCall, ToolResult, Turn } from "./types";
import { Age, Badge, Empty, ErrorNote, Json, Loading, Prose, Section } from "./ui";

interface Read {
  turns: Turn[];
  rounds: Round[];
  messages: Message[];
  more: boolean;
}

/** Transcript shows the turns of an agent, newest first, each with its message and its rounds. */
export function Transcript({ id, version }: { id: string; version: number }) {
  const [size, setSize] = useState(40);
  const t = useRead<Read>(async (s) => {
    const path = agentPath(id);
    const [turns, rounds, messages] = await Promise.all([
      get<{ turns?: Turn[] }>(path + "/turns?page_size=64", s),
      get<{ rounds?: Round[]; nextPageToken?: string }>(path + "/rounds" + query({ page_size: size }), s),
      get<{ messages?: Message[] }>(path + "/messages?page_size=150", s),
    ]);
    return { turns: turns.turns ?? [], rounds: rounds.rounds ?? [], messages: messages.messages ?? [], more: !!rounds.nextPageToken };
  }, [id, size], version);
  const d = t.data;
  if (!d) return t.error ? <ErrorNote error={t.error} again={t.again} /> : <Loading />;
  const messages = new Map(d.messages.map((m) => [m.messageId, m]));
  const rounds = new Map<string, Round[]>();
  for (const r of d.rounds) rounds.set(r.turnId, [...(rounds.get(r.turnId) ?? []), r]);
  const turns = d.turns.filter((x) => rounds.has(x.turnId) || !d.more);
  return (
    <Section title="Transcript" aside={<span class="dim">newest turn first</span>}>
      <ErrorNote error={t.error} />
      {turns.length ? turns.map((x) => <TurnCard key={x.turnId} turn={x} message={messages.get(x.messageId ?? "")} rounds={(rounds.get(x.turnId) ?? []).sort((a, b) => (a.index ?? 0) - (b.index ?? 0))} />)
        : <Empty>No turn was taken yet. A runner takes turns: <code>quartet run --agent {id}</code>, or one of your own.</Empty>}
      {d.more ? <button type="button" onClick={() => setSize(Math.min(500, size * 2))}>Earlier rounds</button> : null}
    </Section>
  );
}

function TurnCard({ turn: t, message: m, rounds }: { turn: Turn; message?: Message; rounds: Round[] }) {
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
      {rounds.map((r) => <RoundCard key={r.index ?? 0} round={r} />)}
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
