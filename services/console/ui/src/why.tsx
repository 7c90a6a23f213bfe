import { get } from "./api";
import { agentPath } from "./fleet";
import { useRead } from "./hooks";
import { plain } from "./remedy";
import { words } from "./text";
import type { Explanation } from "./types";
import { Badge, Clock, Empty, ErrorNote, Loading, Remedies, Section } from "./ui";

const actions: Record<string, string> = {
  DECISION_ACTION_NOTHING: "POSTURE_STOPPED", DECISION_ACTION_DISPATCH: "POSTURE_QUEUED_INPUT", DECISION_ACTION_TICK: "POSTURE_RUNNING_TURN", DECISION_ACTION_IDLE: "POSTURE_IDLE",
};

/** sentence makes a sentence of an explanation, such as "idle: there are no work items". */
function sentence(text: string | undefined): string {
  const s = plain(text).trim();
  return s ? s[0]!.toUpperCase() + s.slice(1) + (/[.!?]$/.test(s) ? "" : ".") : "";
}

/** Why shows what the scheduler would do now, from which facts, and what it decided before. */
export function Why({ id, version }: { id: string; version: number }) {
  const e = useRead<Explanation>((s) => get(agentPath(id) + ":explain", s), [id], version);
  const x = e.data;
  if (!x) return e.error ? <ErrorNote error={e.error} again={e.again} /> : <Loading />;
  return (
    <>
      <ErrorNote error={e.error} />
      <Section title="Now">
        <p class="verdict"><Badge value={actions[x.verdict?.action ?? ""]}>{words(x.verdict?.action, "DECISION_ACTION_")}</Badge> {sentence(x.verdict?.explanation)}</p>
        <Remedies message={x.verdict?.explanation} agent={id} />
        <dl class="facts">{x.facts?.map((f) => <div key={f.name}><dt>{words(f.name, "")}</dt><dd>{f.value || "—"}</dd></div>)}</dl>
      </Section>
      <Section title="Candidates" aside={<span class="dim">which item, and why not the others</span>}>
        {x.candidates?.length ? x.candidates.map((c) => (
          <article key={c.workItemId} class={"message" + (c.chosen ? " chosen" : "")}>
            <header><strong>{c.objective}</strong><span class="dim">{words(c.candidateClass, "")}</span>{c.chosen ? <span class="badge run">chosen</span> : null}</header>
            <p>{sentence(c.why)}{c.waitingFor && !c.why?.includes(c.waitingFor) ? " " + sentence("it " + c.waitingFor) : ""}</p>
          </article>
        )) : <Empty>There are no work items to choose from.</Empty>}
      </Section>
      <Section title="Decisions before">
        {x.recent?.length ? (
          <ol class="log">{x.recent.map((d, i) => <li key={i}><Clock time={d.decidedAt} /><span>{sentence(d.explanation)}</span></li>)}</ol>
        ) : <Empty>None was recorded.</Empty>}
      </Section>
    </>
  );
}
