import { useEffect } from "preact/hooks";
import { get, query } from "./api";
import { agentPath, type Found } from "./fleet";
import { href, usePoll, useRead } from "./hooks";
import { useCan } from "./session";
import { many } from "./text";
import type { Explanation, Message } from "./types";

/** looked is at how many agents with queued messages is looked, and every how many milliseconds. */
const looked = 4;
const every = 15_000;
/** patience is for how many milliseconds a message may be queued while no runner asks for it. */
const patience = 60_000;

interface Unserved {
  /** agents is how many have queued messages, agent one that no runner asks for, and since when it has one. */
  agents: number;
  agent: string;
  since: number;
}

/** find looks for an agent with a message that is queued for long, and for which no runner waits. */
async function find(signal: AbortSignal): Promise<Unserved | undefined> {
  const found = await get<Found>("agents:search" + query({ postures: "POSTURE_QUEUED_INPUT", page_size: looked }), signal);
  const each = await Promise.all((found.agents ?? []).map(async ({ agentId }): Promise<Unserved | undefined> => {
    const m = await get<{ messages?: Message[] }>(agentPath(agentId) + "/messages" + query({ state: "MESSAGE_STATE_QUEUED", page_size: 1 }), signal);
    const since = Date.parse(m.messages?.[0]?.createdAt ?? "");
    if (!(Date.now() - since > patience)) return undefined;
    const x = await get<Explanation>(agentPath(agentId) + ":explain", signal);
    return x.facts?.find((f) => f.name === "runners_waiting")?.value === "0" ? { agents: found.total ?? 1, agent: agentId, since } : undefined;
  }));
  return each.filter((x) => x !== undefined).sort((a, b) => a.since - b.since)[0];
}

/** useUnserved returns which agents no runner serves. While it is read, and for a role that may not, nothing is known. */
export function useUnserved(): Unserved | undefined {
  const can = useCan();
  const may = can("FleetService/SearchAgents") && can("SchedulerService/Explain");
  const r = useRead<Unserved | undefined>((s) => (may ? find(s) : Promise.resolve(undefined)), [may]);
  useEffect(() => {
    const t = setInterval(() => document.hidden || r.again(), every);
    return () => clearInterval(t);
  }, []);
  return r.data;
}

/** UnservedNote warns that no runner takes the turns of agents with queued messages. */
export function UnservedNote({ unserved: u }: { unserved?: Unserved }) {
  const counts = usePoll<{ turnsLastMinute?: number; postures?: { posture: string; agents?: number }[] }>("agents:count", every, !!u);
  if (!u) return null;
  const running = counts.data?.postures?.find((p) => p.posture === "POSTURE_RUNNING_TURN")?.agents ?? 0;
  const turns = counts.data?.turnsLastMinute ?? 0;
  return (
    <div class="note bad" role="alert">
      <p><strong>{many(u.agents, "agent has", "agents have")} queued messages, and no runner asks for a turn of <a href={href(["agents", u.agent], { tab: "why" })}>{u.agent}</a>, whose message has waited for {many(Math.floor((Date.now() - u.since) / 60_000), "minute")}.</strong></p>
      <p>{running || turns ? "Runners take turns of other agents: there are too few, or none serves this one." : "No turn was taken in the last minute: it seems that no runner is connected."} <code>quartet run --agent {u.agent}</code> takes its turns.</p>
    </div>
  );
}
