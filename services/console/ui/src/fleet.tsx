import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, enc, get, mutate, query } from "./api";
import { go, href, type Route, useMedia, usePoll } from "./hooks";
import { useCan, whoMay } from "./session";
import { count, many, words } from "./text";
import type { Agent, Installation, Wait } from "./types";
import { Age, Badge, Dialog, Empty, ErrorNote, Field, Loading, toneOf, useAct, VirtualList } from "./ui";
import { UnservedNote, useUnserved } from "./unserved";

/** postures in the order in which a person looks for them. */
const postures = [
  "POSTURE_WAITING_OPERATOR", "POSTURE_BLOCKED", "POSTURE_RUNNING_TURN", "POSTURE_QUEUED_INPUT", "POSTURE_RUNNABLE_WORK",
  "POSTURE_WAITING_TASK", "POSTURE_WAITING_EXTERNAL", "POSTURE_PAUSED", "POSTURE_STOPPED", "POSTURE_IDLE",
];

/** attentions are the reasons for which an agent needs a person. */
export const attentions: Record<string, string> = {
  ATTENTION_QUESTION: "asks", ATTENTION_QUARANTINED: "failed messages", ATTENTION_WEAK_WAIT: "waits for nothing", ATTENTION_STALLED_BOARD: "stalled board", ATTENTION_BLOCKED: "blocked",
};

export interface FleetAgent extends Agent {
  attentions?: string[];
  queued?: number;
  quarantined?: number;
  waits?: Wait[];
}

/** Found is a page of a search. */
export interface Found {
  agents?: FleetAgent[];
  nextPageToken?: string;
  total?: number;
  incomplete?: boolean;
}

interface Counts {
  agents?: number;
  postures?: { posture: string; agents?: number }[];
  attentions?: { attention: string; agents?: number }[];
  needAttention?: number;
  turnsLastMinute?: number;
  inputTokensLastMinute?: string;
  outputTokensLastMinute?: string;
  incomplete?: boolean;
}

const pageSize = 100;
/** every is how often the overview is read again, in milliseconds. The server's own is a second old at most. */
const every = 2000;

/** useFleet reads the agents that a filter selects, page by page as far as they are looked at, and again from time to time. */
function useFleet(filter: { postures?: string; attentions?: string; contains: string; include_private: boolean }) {
  const [agents, setAgents] = useState<FleetAgent[]>([]);
  const [error, setError] = useState<ApiError>();
  const [info, setInfo] = useState<{ total: number; incomplete: boolean }>();
  const at = useRef({ token: "", busy: false, generation: 0, pages: 1 });
  const key = JSON.stringify(filter);

  const read = useCallback(async (fresh: boolean) => {
    const s = at.current;
    if (s.busy && !fresh) return;
    const generation = fresh ? ++s.generation : s.generation;
    s.busy = true;
    try {
      const wanted = fresh ? Math.max(1, Math.min(s.pages, 3)) : 1;
      let token = fresh ? "" : s.token;
      const got: FleetAgent[] = [];
      let pages = 0;
      let last: Found;
      do {
        last = await get<Found>("agents:search" + query({ ...JSON.parse(key), page_size: pageSize, page_token: token }));
        if (s.generation !== generation) return;
        got.push(...(last.agents ?? []));
        token = last.nextPageToken ?? "";
        pages++;
      } while (token && pages < wanted);
      setInfo({ total: last.total ?? 0, incomplete: !!last.incomplete });
      setError(undefined);
      if (fresh && s.pages > 3) {
        // Only what was read again is replaced: somebody looks at what comes after it.
        const upTo = got.at(-1)?.agentId ?? "";
        setAgents((old) => got.concat(token ? old.filter((a) => a.agentId > upTo) : []));
        if (!token) s.token = "";
      } else {
        s.token = token;
        s.pages = fresh ? pages : s.pages + pages;
        setAgents((old) => (fresh ? got : old.concat(got)));
      }
    } catch (e) {
      if (s.generation === generation) setError(e as ApiError);
    } finally {
      if (s.generation === generation) s.busy = false;
    }
  }, [key]);

  useEffect(() => {
    at.current = { token: "", busy: false, generation: at.current.generation, pages: 1 };
    let stop = false;
    let timer: ReturnType<typeof setTimeout>;
    const tick = async () => {
      if (!document.hidden) await read(true);
      if (!stop) timer = setTimeout(tick, every);
    };
    void tick();
    return () => {
      stop = true;
      at.current.generation++;
      clearTimeout(timer);
    };
  }, [read]);
  const more = useCallback(() => {
    if (at.current.token) void read(false);
  }, [read]);
  return { agents, error, info, more, again: () => read(true) };
}

/** Fleet shows all agents by what they do, and why. */
export function Fleet({ route }: { route: Route }) {
  const can = useCan();
  const narrow = useMedia("(max-width: 720px)");
  const posture = route.params.get("posture") ?? "";
  const attention = route.params.get("needs") ?? "";
  const text = route.params.get("q") ?? "";
  const priv = route.params.get("children") === "1";
  const fleet = useFleet({ postures: posture || undefined, attentions: attention || undefined, contains: text.trim().toLowerCase(), include_private: priv });
  const counts = usePoll<Counts>("agents:count" + query({ include_private: priv }), every);
  const health = usePoll<Installation>("processes?examine=true", 60_000, can("IdentityService/ListProcesses"));
  const workers = usePoll<{ workers?: unknown[] }>("board-workers", 15_000, can("BoardService/ListWorkers"));
  const unserved = useUnserved();
  const [spawning, setSpawning] = useState(false);
  const set = (change: Record<string, string>) => go(href(["fleet"], { posture, needs: attention, q: text, children: priv ? "1" : "", ...change }), true);
  const c = counts.data;
  const of = new Map(c?.postures?.map((p) => [p.posture, p.agents ?? 0]));
  const needs = c?.attentions?.filter((x) => x.agents) ?? [];
  const total = c?.agents ?? 0;
  const filtered = !!(posture || attention || text.trim());
  const limit = Number(health.data?.storeLimitBytes ?? 0);
  return (
    <div class="page fill">
      <header class="head">
        <div>
          <h1>Fleet <span class="dim">{c ? many(total, "agent") : ""}{c?.incomplete ? " so far" : ""}</span></h1>
          {c ? (
            <p class="reason">
              <span>{many(c.turnsLastMinute ?? 0, "turn")} a minute</span>
              <span>{count(c.inputTokensLastMinute)} → {count(c.outputTokensLastMinute)} tokens a minute</span>
              {workers.data ? <span>{many(workers.data.workers?.length ?? 0, "worker")} of boards</span> : null}
              {limit ? <span>store {Math.round((100 * Number(health.data?.storeUsedBytes ?? 0)) / limit)} % full</span> : null}
              {health.data?.problems?.length ? <a href={href(["admin"])}>{many(health.data.problems.length, "problem")}</a> : null}
            </p>
          ) : null}
        </div>
        <div class="tools">
          <input type="search" aria-label="Search agents" placeholder="Search by id" value={text} onInput={(e) => set({ q: e.currentTarget.value })} />
          <label class="check"><input type="checkbox" checked={priv} onChange={(e) => set({ children: e.currentTarget.checked ? "1" : "" })} /> children</label>
          {can("AgentService/SpawnAgent") ? <button type="button" class="primary" onClick={() => setSpawning(true)}>New agent</button> : <span class="dim">New agents: {whoMay("AgentService/SpawnAgent")}</span>}
        </div>
      </header>
      <div class="chips" role="group" aria-label="Postures">
        <button type="button" aria-pressed={!posture && !attention} onClick={() => set({ posture: "", needs: "" })}>all <b>{count(total)}</b></button>
        {postures.map((p) => (
          <button key={p} type="button" class={toneOf(p)} aria-pressed={posture === p} onClick={() => set({ posture: posture === p ? "" : p, needs: "" })}>
            {words(p, "POSTURE_")} <b>{count(of.get(p))}</b>
          </button>
        ))}
        {needs.map((x) => (
          <button key={x.attention} type="button" class="ask" aria-pressed={attention === x.attention} onClick={() => set({ needs: attention === x.attention ? "" : x.attention, posture: "" })}>
            {attentions[x.attention]} <b>{count(x.agents)}</b>
          </button>
        ))}
      </div>
      <UnservedNote unserved={unserved} />
      <ErrorNote error={fleet.error} again={() => void fleet.again()} />
      {fleet.info?.incomplete ? <p class="dim" role="status">Agents are still being looked at; more are found as that goes on.</p> : null}
      {fleet.agents.length ? (
        <VirtualList rows={fleet.agents} label="Agents" more={fleet.more} height={narrow ? 80 : undefined} row={(a) => <Row key={a.agentId} agent={a} />} />
      ) : !fleet.info && !fleet.error ? <Loading /> : filtered ? (
        <Empty>No agent matches. <button type="button" class="link" onClick={() => set({ posture: "", needs: "", q: "" })}>Show all</button></Empty>
      ) : (
        <Empty>There are no agents in this namespace yet. Create one here, or with <code>quartet agent spawn keeper</code>.</Empty>
      )}
      {spawning ? <Spawn close={() => setSpawning(false)} /> : null}
    </div>
  );
}

function Row({ agent: a }: { agent: FleetAgent }) {
  return (
    <div role="listitem"><a class="row agent" href={href(["agents", a.agentId])}>
      <span class="id">{a.agentId}</span>
      <Badge value={a.posture} prefix="POSTURE_" />
      <span class="why">{a.postureReason}</span>
      <span class="num">
        {a.queued ? <span title="messages that are queued">{count(a.queued)} queued</span> : null}
        {a.attentions?.filter((x) => x !== "ATTENTION_BLOCKED").map((x) => <span key={x} class={"badge " + (x === "ATTENTION_QUESTION" ? "ask" : "bad")}>{attentions[x]}</span>)}
      </span>
      <span class="age"><Age time={a.updatedAt} /></span>
    </a></div>
  );
}

function Spawn({ close }: { close: () => void }) {
  const [id, setId] = useState("");
  const [first, setFirst] = useState("");
  const { busy, error, run } = useAct();
  return (
    <Dialog title="New agent" close={close}>
      <form onSubmit={(e) => {
        e.preventDefault();
        void run(async () => {
          await mutate("POST", "agents", { agentId: id.trim(), preset: "PRESET_PUBLIC_NAMED", ...(first.trim() ? { initialMessage: first } : {}) });
          close();
          go(href(["agents", id.trim()]));
        });
      }}>
        <Field label="Id" hint="Lower-case letters, digits, - and _. It is never used again after a deletion."><input value={id} onInput={(e) => setId(e.currentTarget.value)} required autoFocus maxLength={128} /></Field>
        <Field label="First message (optional)"><textarea rows={4} value={first} onInput={(e) => setFirst(e.currentTarget.value)} /></Field>
        <ErrorNote error={error} />
        <footer><button type="button" onClick={close}>Back</button><button type="submit" class="primary" disabled={busy || !id.trim()}>Create</button></footer>
      </form>
    </Dialog>
  );
}

/** agentPath is the path of an agent's records in the API. */
export const agentPath = (id: string) => "agents/" + enc(id);
