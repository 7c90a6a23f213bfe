// The lists of an agent's page, each as far as it was asked for.

import { enc, get, query } from "./api";
import { agentPath } from "./fleet";
import { go, href, usePages, useRead } from "./hooks";
import { words } from "./text";
import type { Board, Brief, Delegation, Task } from "./types";
import { Age, Badge, Clock, Empty, ErrorNote, Loading, More, Prose, Removed, Section } from "./ui";

/** Part is a part of the page of an agent, which is read again with each version. */
export interface Part {
  id: string;
  version: number;
}

/** ofLate is how many ended tasks are shown unasked. */
const ofLate = 5;

/** Tasks shows the commands that run for an agent, and those that ended of late, or all. */
export function Tasks({ id, version, ended: all }: Part & { ended: boolean }) {
  const tasks = usePages<Task>(async (page_token, page_size, s) => {
    const p = await get<{ tasks?: Task[]; nextPageToken?: string }>(agentPath(id) + "/tasks" + query({ page_size, page_token, include_terminal: all }), s);
    return { rows: p.tasks, next: p.nextPageToken };
  }, 50, [id, all], version);
  const before = useRead<{ tasks?: Task[]; nextPageToken?: string } | undefined>((s) => (all ? Promise.resolve(undefined) : get(agentPath(id) + "/tasks?include_terminal=true&page_size=50", s)), [id, all], version);
  const recent = before.data?.tasks?.filter((t) => t.terminal) ?? [];
  const shown = recent.slice(0, ofLate);
  return (
    <Section title="Tasks" aside={<label class="check"><input type="checkbox" checked={all} onChange={(e) => go(href(["agents", id], { tab: "tasks", ended: e.currentTarget.checked ? "1" : "" }), true)} /> also ended ones</label>}>
      <ErrorNote error={tasks.error ?? before.error} />
      {tasks.data?.length ? <ul class="cards">{tasks.data.map((t) => <TaskRow key={t.taskId} task={t} agent={id} />)}</ul>
        : tasks.data ? <Empty>{all || (before.data && !before.data.tasks?.length) ? "It never ran a command." : "No command of it is running."}</Empty> : tasks.error ? null : <Loading />}
      <More shown={tasks.data?.length ?? 0} more={tasks.more} what="tasks" />
      {!all && shown.length ? (
        <>
          <h3>Ended of late</h3>
          <ul class="cards">{shown.map((t) => <TaskRow key={t.taskId} task={t} agent={id} />)}</ul>
          {recent.length > shown.length || before.data?.nextPageToken ? <p class="more"><a href={href(["agents", id], { tab: "tasks", ended: "1" })}>All that ended</a></p> : null}
        </>
      ) : null}
    </Section>
  );
}

function TaskRow({ task: t, agent }: { task: Task; agent: string }) {
  const end = t.terminal ? t.endMessage || (t.exitCode ? "exit code " + t.exitCode : "") : t.queueMessage;
  return (
    <li>
      <Badge value={t.state} prefix="TASK_STATE_" />
      <a href={href(["agents", agent, "tasks", t.taskId])}><strong class="mono">{t.label || t.taskId}</strong></a>
      <span class="dim">{words(t.kind, "TASK_KIND_")} · <Age time={t.endedAt ?? t.createdAt} />{t.workerId ? " · on " + t.workerId : ""}{end ? " · " + end : ""}</span>
    </li>
  );
}

/** Boards shows the boards that an agent keeps. */
export function Boards({ id, version }: Part) {
  const boards = usePages<Board>(async (offset, limit, s) => {
    const p = await get<{ boards?: Board[]; truncated?: boolean }>("sessions/" + enc(id) + "/boards" + query({ include_terminal: true, limit, offset }), s);
    return { rows: p.boards, next: p.truncated && p.boards?.length ? String(Number(offset) + p.boards.length) : "" };
  }, 50, [id], version);
  return (
    <Section title="Boards">
      <ErrorNote error={boards.error} />
      {boards.data?.length ? (
        <ul class="cards">{boards.data.map((b) => (
          <li key={b.boardId + b.createdAt}>
            <Badge value={b.status} prefix="BOARD_STATUS_" />
            <a href={href(["agents", id, "boards", b.boardId])}><strong>{b.title || b.boardId}</strong></a>
            {b.diagnostics?.stalled ? <span class="badge bad">stalled</span> : null}
            <span class="dim">{Object.entries(b.counts ?? {}).map(([k, n]) => n + " " + k).join(" · ")} · <Age time={b.updatedAt} /></span>
          </li>
        ))}</ul>
      ) : boards.loading ? <Loading /> : <Empty>It keeps no boards.</Empty>}
      <More shown={boards.data?.length ?? 0} more={boards.more} what="boards" />
    </Section>
  );
}

/** Children shows what an agent delegated. */
export function Children({ id, version }: Part) {
  const d = usePages<Delegation>(async (page_token, page_size, s) => {
    const p = await get<{ delegations?: Delegation[]; nextPageToken?: string }>(agentPath(id) + "/delegations" + query({ page_size, page_token }), s);
    return { rows: p.delegations, next: p.nextPageToken };
  }, 50, [id], version);
  return (
    <Section title="Children" aside={<span class="dim">what it delegated</span>}>
      <ErrorNote error={d.error} />
      {d.data?.length ? d.data.map((x) => (
        <article key={x.delegationId} class="message">
          <header>
            <Badge value={x.state === "DELEGATION_STATE_OPEN" ? "TASK_STATE_RUNNING" : x.outcome === "DELEGATION_OUTCOME_COMPLETED" ? "TASK_STATE_COMPLETED" : "TASK_STATE_CANCELLED"}>
              {x.state === "DELEGATION_STATE_OPEN" ? "open" : words(x.outcome, "DELEGATION_OUTCOME_")}
            </Badge>
            {x.childAgentId ? <a href={href(["agents", x.childAgentId])}><strong>{x.childAgentId}</strong></a> : null}
            <span class="dim"><Age time={x.createdAt} /></span>
          </header>
          <Prose text={x.label} />
          {x.questions?.map((q) => <p key={q.waitId} class="note">asks: {q.text}</p>)}
          <Prose text={x.resultSummary} />
        </article>
      )) : d.loading ? <Loading /> : <Empty>It delegated nothing.</Empty>}
      <More shown={d.data?.length ?? 0} more={d.more} what="delegations" />
    </Section>
  );
}

/** Briefs shows what an agent reported. */
export function Briefs({ id, version }: Part) {
  const b = usePages<Brief>(async (page_token, page_size, s) => {
    const p = await get<{ briefs?: Brief[]; nextPageToken?: string; historyRemoved?: boolean }>(agentPath(id) + "/briefs" + query({ page_size, page_token }), s);
    return { rows: p.briefs, next: p.nextPageToken, removed: p.historyRemoved };
  }, 50, [id], version);
  return (
    <Section title="Briefs">
      <ErrorNote error={b.error} />
      {b.data?.length ? b.data.map((x) => (
        <article key={x.briefId} class="message">
          <header>
            <Badge value={x.kind === "BRIEF_KIND_FAILURE" ? "TASK_STATE_FAILED" : x.kind === "BRIEF_KIND_RESULT" ? "TASK_STATE_COMPLETED" : "TASK_STATE_QUEUED"}>{words(x.kind, "BRIEF_KIND_")}</Badge>
            <span class="dim"><Clock time={x.createdAt} /></span>
          </header>
          <Prose text={x.text} />
        </article>
      )) : b.loading ? <Loading /> : b.removed ? null : <Empty>It reported nothing yet.</Empty>}
      <More shown={b.data?.length ?? 0} more={b.more} what="briefs" />
      <Removed removed={b.removed} oldest={b.data?.at(-1)?.createdAt} what={b.data?.length ? "Briefs" : "All briefs"} />
    </Section>
  );
}
