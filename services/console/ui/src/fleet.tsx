import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, enc, get, mutate, query } from "./api";
import { go, href, type Route, useLive } from "./hooks";
import { useCan, whoMay } from "./session";
import { count, many, words } from "./text";
import type { Agent } from "./types";
import { Age, Badge, Dialog, Empty, ErrorNote, Field, Loading, toneOf, useAct, VirtualList } from "./ui";

/** postures in the order in which a person looks for them. */
const postures = [
  "POSTURE_WAITING_OPERATOR", "POSTURE_BLOCKED", "POSTURE_RUNNING_TURN", "POSTURE_QUEUED_INPUT", "POSTURE_RUNNABLE_WORK",
  "POSTURE_WAITING_TASK", "POSTURE_WAITING_EXTERNAL", "POSTURE_PAUSED", "POSTURE_STOPPED", "POSTURE_IDLE",
];

interface Page {
  agents?: Agent[];
  nextPageToken?: string;
}

const pageSize = 100;

/** useFleet reads agents page by page, as far as they are looked at, and again when something happened. */
function useFleet(includePrivate: boolean) {
  const [agents, setAgents] = useState<Agent[]>([]);
  const [error, setError] = useState<ApiError>();
  const [state, setState] = useState<"loading" | "more" | "all">("loading");
  const at = useRef({ token: "", busy: false, generation: 0, pages: 0 });

  const read = useCallback(async (fresh: boolean) => {
    const s = at.current;
    if (s.busy && !fresh) return;
    const generation = fresh ? ++s.generation : s.generation;
    s.busy = true;
    try {
      const wanted = fresh ? Math.max(1, Math.min(s.pages, 5)) : 1;
      let token = fresh ? "" : s.token;
      const got: Agent[] = [];
      let pages = 0;
      do {
        const p = await get<Page>("agents" + query({ page_size: pageSize, page_token: token, include_private: includePrivate }));
        if (s.generation !== generation) return;
        got.push(...(p.agents ?? []));
        token = p.nextPageToken ?? "";
        pages++;
      } while (token && pages < wanted);
      s.token = token;
      s.pages = fresh ? pages : s.pages + pages;
      setAgents((old) => (fresh ? got : old.concat(got)));
      setState(token ? "more" : "all");
      setError(undefined);
    } catch (e) {
      if (s.generation === generation) setError(e as ApiError);
    } finally {
      if (s.generation === generation) s.busy = false;
    }
  }, [includePrivate]);

  useEffect(() => {
    at.current.pages = 0;
    void read(true);
  }, [read]);
  const more = useCallback(() => {
    if (at.current.token) void read(false);
  }, [read]);
  return { agents, error, state, more, again: () => read(true) };
}

/** Fleet shows all agents by what they do, and why. */
export function Fleet({ route }: { route: Route }) {
  const can = useCan();
  const filter = route.params.get("posture") ?? "";
  const text = route.params.get("q") ?? "";
  const priv = route.params.get("children") === "1";
  const fleet = useFleet(priv);
  const [spawning, setSpawning] = useState(false);
  const refresh = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const dirty = () => {
    refresh.current ??= setTimeout(() => {
      refresh.current = undefined;
      void fleet.again();
    }, 1000);
  };
  useEffect(() => () => clearTimeout(refresh.current), []);
  useLive({ planes: ["agent", "work", "waiting"] }, dirty, dirty, can("EventService/WatchEvents"));

  const set = (change: Record<string, string>) => go(href(["fleet"], { posture: filter, q: text, children: priv ? "1" : "", ...change }), true);
  const counts = new Map<string, number>();
  for (const a of fleet.agents) counts.set(a.posture ?? "", (counts.get(a.posture ?? "") ?? 0) + 1);
  const wanted = text.trim().toLowerCase();
  const rows = fleet.agents.filter((a) => (!filter || a.posture === filter) && (!wanted || a.agentId.includes(wanted) || (a.postureReason ?? "").toLowerCase().includes(wanted)));

  return (
    <div class="page fill">
      <header class="head">
        <h1>Fleet <span class="dim">{fleet.state === "loading" ? "" : (fleet.state === "more" ? "first " : "") + many(fleet.agents.length, "agent")}</span></h1>
        <div class="tools">
          <input type="search" aria-label="Search agents" placeholder="Search by id or reason" value={text} onInput={(e) => set({ q: e.currentTarget.value })} />
          <label class="check"><input type="checkbox" checked={priv} onChange={(e) => set({ children: e.currentTarget.checked ? "1" : "" })} /> children</label>
          {can("AgentService/SpawnAgent") ? <button type="button" class="primary" onClick={() => setSpawning(true)}>New agent</button> : <span class="dim">New agents: {whoMay("AgentService/SpawnAgent")}</span>}
        </div>
      </header>
      <div class="chips" role="group" aria-label="Postures">
        <button type="button" aria-pressed={!filter} onClick={() => set({ posture: "" })}>all <b>{count(fleet.agents.length)}</b></button>
        {postures.map((p) => (
          <button key={p} type="button" class={toneOf(p)} aria-pressed={filter === p} onClick={() => set({ posture: filter === p ? "" : p })}>
            {words(p, "POSTURE_")} <b>{count(counts.get(p))}</b>
          </button>
        ))}
      </div>
      <ErrorNote error={fleet.error} again={() => void fleet.again()} />
      {rows.length ? (
        <VirtualList rows={rows} label="Agents" more={fleet.more} row={(a) => <Row key={a.agentId} agent={a} />} />
      ) : fleet.state === "loading" && !fleet.error ? <Loading /> : fleet.agents.length ? (
        <Empty>No agent of {count(fleet.agents.length)} matches. <button type="button" class="link" onClick={() => set({ posture: "", q: "" })}>Show all</button></Empty>
      ) : (
        <Empty>There are no agents in this namespace yet. Create one here, or with <code>quartet agent spawn keeper</code>.</Empty>
      )}
      {spawning ? <Spawn close={() => setSpawning(false)} /> : null}
    </div>
  );
}

function Row({ agent: a }: { agent: Agent }) {
  const lane = a.lane ?? {};
  return (
    <div role="listitem"><a class="row agent" href={href(["agents", a.agentId])}>
      <span class="id">{a.agentId}</span>
      <Badge value={a.posture} prefix="POSTURE_" />
      <span class="why">{a.postureReason}</span>
      <span class="num">
        {lane.queued ? <span title="messages that are queued">{count(lane.queued)} queued</span> : null}
        {lane.quarantined ? <span class="badge bad" title="messages on which turns failed">{count(lane.quarantined)} quarantined</span> : null}
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
        <footer><button type="button" onClick={close}>Cancel</button><button type="submit" class="primary" disabled={busy || !id.trim()}>Create</button></footer>
      </form>
    </Dialog>
  );
}

/** agentPath is the path of an agent's records in the API. */
export const agentPath = (id: string) => "agents/" + enc(id);
