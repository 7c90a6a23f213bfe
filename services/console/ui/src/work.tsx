import { useState } from "preact/hooks";
import { get, mutate, query } from "./api";
import { Say } from "./agent";
import { agentPath } from "./fleet";
import { usePages, useRead } from "./hooks";
import { useCan } from "./session";
import { count, words } from "./text";
import type { WorkItem, WorkQueue } from "./types";
import { Age, Badge, Confirm, Dialog, Empty, ErrorNote, Field, Loading, More, Prose, Section, useAct } from "./ui";

const classes: { key: keyof WorkQueue & string; title: string; total: string; filter: string }[] = [
  { key: "triggeredBlocked", title: "Something came for it", total: "triggeredBlocked", filter: "OPEN" },
  { key: "queuedRunnable", title: "Queued", total: "queuedRunnable", filter: "QUEUED" },
  { key: "waitingForOperator", title: "Waiting for an operator", total: "waitingForOperator", filter: "WAITING_FOR_OPERATOR" },
  { key: "blocked", title: "Blocked or waiting", total: "blocked", filter: "BLOCKED" },
  { key: "completedRecent", title: "Completed", total: "completed", filter: "COMPLETED" },
];

/** Work shows the queue of an agent as the scheduler ranks it. */
export function Work({ id, version, changed }: { id: string; version: number; changed: () => void }) {
  const can = useCan();
  const [creating, setCreating] = useState(false);
  const [all, setAll] = useState(new Set<string>());
  const q = useRead<WorkQueue>((s) => get(agentPath(id) + "/work-queue", s), [id], version);
  const queue = q.data;
  const shown = classes.map((c) => ({ ...c, items: (queue?.[c.key] as WorkItem[] | undefined) ?? [] })).filter((c) => c.items.length);
  return (
    <Section title="Work" aside={can("WorkService/CreateWorkItem") ? <button type="button" onClick={() => setCreating(true)}>New item</button> : null}>
      <ErrorNote error={q.error} />
      {!queue && q.loading ? <Loading /> : null}
      {queue?.current ? <><h3>In focus</h3><Item item={queue.current} changed={changed} open /></> : null}
      {shown.map((c) => {
        const n = queue?.counts?.[c.total as "blocked"] ?? c.items.length;
        return (
          <div key={c.key}>
            <h3>{c.title} <span class="dim">{count(n)}</span></h3>
            {all.has(c.key) ? <All id={id} version={version} filter={c.filter} candidateClass={"CANDIDATE_CLASS_" + c.key.replaceAll(/[A-Z]/g, "_$&").toUpperCase()} changed={changed} />
              : c.items.map((i) => <Item key={i.workItemId} item={i} changed={changed} />)}
            {n > c.items.length && !all.has(c.key) ? <More shown={c.items.length} total={n} what="items" more={() => setAll(new Set([...all, c.key]))} /> : null}
          </div>
        );
      })}
      {queue && !queue.current && !shown.length ? <Empty>It has no work items.</Empty> : null}
      {creating ? <Create id={id} close={() => setCreating(false)} changed={changed} /> : null}
    </Section>
  );
}

/** All shows the items of a class beyond those that the queue has, in the order of their creation. */
function All({ id, version, filter, candidateClass, changed }: { id: string; version: number; filter: string; candidateClass: string; changed: () => void }) {
  const items = usePages<WorkItem>(async (page_token, page_size, s) => {
    const p = await get<{ workItems?: WorkItem[]; nextPageToken?: string }>(agentPath(id) + "/work-items" + query({ filter: "WORK_ITEM_FILTER_" + filter, page_size, page_token, include_todo_list: true, omit_plan_previews: true }), s);
    return { rows: p.workItems?.filter((i) => i.candidateClass === candidateClass && !i.isCurrent), next: p.nextPageToken };
  }, 50, [id, filter], version);
  return (
    <>
      <ErrorNote error={items.error} />
      {items.data ? items.data.map((i) => <Item key={i.workItemId} item={i} changed={changed} />) : <Loading />}
      <More shown={items.data?.length ?? 0} more={items.more} what="items" />
    </>
  );
}

const marks: Record<string, string> = { TODO_STATE_COMPLETED: "done", TODO_STATE_IN_PROGRESS: "doing" };

/** Item shows a work item; opened, its todos, plan and what may be done with it. */
export function Item({ item: i, changed, open }: { item: WorkItem; changed: () => void; open?: boolean }) {
  const can = useCan();
  const [unfolded, setUnfolded] = useState(!!open);
  const [completing, setCompleting] = useState(false);
  const path = agentPath(i.agentId ?? "") + "/work-items/" + i.workItemId;
  const full = useRead<{ workItem: WorkItem } | undefined>((s) => (unfolded ? get(path, s) : Promise.resolve(undefined)), [i.workItemId, i.revision, unfolded]);
  const w = full.data?.workItem ?? i;
  const todos = w.todoList ?? [];
  const done = todos.filter((t) => t.state === "TODO_STATE_COMPLETED").length;
  const asks = i.readiness === "READINESS_WAITING_FOR_OPERATOR";
  return (
    <article class="item">
      <header>
        <button type="button" class="unfold" aria-expanded={unfolded} onClick={() => setUnfolded(!unfolded)}>
          <span class="caret" aria-hidden="true" />{i.objective}
        </button>
        <Badge value={i.schedulingState} prefix="SCHEDULING_STATE_" />
        {todos.length ? <span class="dim">{done} of {todos.length}</span> : null}
        <span class="dim"><Age time={i.updatedAt} /></span>
      </header>
      {i.blockedBy ? <p class="blocked">{i.blockedBy}</p> : null}
      {unfolded ? (
        <div class="body">
          <ErrorNote error={full.error} />
          {todos.length ? <ul class="todos">{todos.map((t, n) => <li key={n} class={marks[t.state ?? ""] ?? "todo"}><span class="sr">{words(t.state, "TODO_STATE_")}: </span>{t.text}</li>)}</ul> : null}
          {w.planArtifact?.preview ? <details open={open}><summary>Plan <span class="dim">{words(w.planStatus, "PLAN_STATUS_")}</span></summary><Prose text={w.planArtifact.preview + (w.planArtifact.previewComplete ? "" : "\n…")} /></details> : null}
          {w.resultSummary ? <><h4>Report</h4><Prose text={w.resultSummary} /></> : null}
          <p class="dim"><code>{w.workItemId}</code> · revision {w.revision} · created <Age time={w.createdAt} />{w.completedAt ? <> · completed <Age time={w.completedAt} /></> : null}{w.recheckAt ? <> · reminder <Age time={w.recheckAt} /></> : null}</p>
          {w.state === "WORK_ITEM_STATE_OPEN" && can("WorkService/CompleteWorkItem") ? <button type="button" onClick={() => setCompleting(true)}>Complete</button> : null}
          {asks && w.agentId ? <Say agent={{ agentId: w.agentId }} workItemId={w.workItemId} placeholder="Answer about this item" changed={changed} /> : null}
        </div>
      ) : null}
      {completing ? <Confirm title="Complete the item" action="Complete the item" text={<>There is no way back: <q>{i.objective}</q></>} close={() => setCompleting(false)}
        act={() => mutate("POST", path + ":complete", { expectedRevision: w.revision }).then(changed)} /> : null}
    </article>
  );
}

function Create({ id, close, changed }: { id: string; close: () => void; changed: () => void }) {
  const [objective, setObjective] = useState("");
  const [plan, setPlan] = useState("");
  const [todos, setTodos] = useState("");
  const { busy, error, run } = useAct(() => {
    changed();
    close();
  });
  const todoList = todos.split("\n").map((t) => t.trim()).filter(Boolean).map((text) => ({ text, state: "TODO_STATE_PENDING" }));
  return (
    <Dialog title="New work item" close={close}>
      <form onSubmit={(e) => {
        e.preventDefault();
        void run(() => mutate("POST", agentPath(id) + "/work-items", { objective, plan, planStatus: plan.trim() ? "PLAN_STATUS_READY" : "PLAN_STATUS_DRAFT", ...(todoList.length ? { todoList } : {}) }));
      }}>
        <Field label="Objective" hint="What is to be achieved, in a sentence."><textarea rows={2} value={objective} maxLength={2000} onInput={(e) => setObjective(e.currentTarget.value)} required autoFocus /></Field>
        <Field label="Plan (optional)"><textarea rows={5} value={plan} onInput={(e) => setPlan(e.currentTarget.value)} /></Field>
        <Field label="Todos (optional)" hint="One a line."><textarea rows={4} value={todos} onInput={(e) => setTodos(e.currentTarget.value)} /></Field>
        <ErrorNote error={error} />
        <footer><button type="button" onClick={close}>Back</button><button type="submit" class="primary" disabled={busy || !objective.trim()}>Create</button></footer>
      </form>
    </Dialog>
  );
}
