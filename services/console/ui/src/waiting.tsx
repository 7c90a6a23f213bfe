import { useState } from "preact/hooks";
import { get, mutate, query } from "./api";
import { agentPath } from "./fleet";
import { usePages } from "./hooks";
import type { Part } from "./lists";
import { useCan } from "./session";
import { many, words } from "./text";
import type { Timer, Trigger, Wait } from "./types";
import { Age, Badge, Confirm, Empty, ErrorNote, Loading, More, Prose, Section } from "./ui";

/** Ending is what is asked about before a wait, a trigger or a timer ends. */
interface Ending {
  title: string;
  text: string;
  path: string;
}

/** Waiting shows what an agent waits for, and what may wake it. */
export function Waiting({ id, version, changed }: Part & { changed: () => void }) {
  const can = useCan();
  const path = agentPath(id);
  const waits = usePages<Wait>(async (page_token, page_size, s) => {
    const p = await get<{ waits?: Wait[]; nextPageToken?: string }>(path + "/waits" + query({ page_size, page_token }), s);
    return { rows: p.waits, next: p.nextPageToken };
  }, 100, [id], version);
  const triggers = usePages<Trigger>(async (page_token, page_size, s) => {
    const p = await get<{ triggers?: Trigger[]; nextPageToken?: string }>(path + "/triggers" + query({ page_size, page_token }), s);
    return { rows: p.triggers, next: p.nextPageToken };
  }, 50, [id], version);
  const timers = usePages<Timer>(async (page_token, page_size, s) => {
    const p = await get<{ timers?: Timer[]; nextPageToken?: string }>(path + "/timers" + query({ page_size, page_token }), s);
    return { rows: p.timers, next: p.nextPageToken };
  }, 50, [id], version);
  const [ending, end] = useState<Ending>();
  return (
    <>
      <Section title="Waits">
        <ErrorNote error={waits.error} />
        {waits.data?.length ? waits.data.map((w) => <WaitCard key={w.waitId} wait={w}>
          {can("WaitingService/CancelWait") ? <button type="button" onClick={() => end({ title: "Cancel the wait", text: "It ends without what it waits for, for good. What it holds up may go on: the agent may take a turn about it.", path: path + "/waits/" + w.waitId })}>Cancel…</button> : null}
        </WaitCard>) : waits.loading ? <Loading /> : <Empty>It waits for nothing.</Empty>}
        <More shown={waits.data?.length ?? 0} more={waits.more} what="waits" />
      </Section>
      <Section title="Triggers" aside={<span class="dim">addresses that outside systems call</span>}>
        <ErrorNote error={triggers.error} />
        {triggers.data?.length ? (
          <ul class="cards">{triggers.data.map((t) => (
            <li key={t.triggerId}>
              <strong>{t.description || t.triggerId}</strong>
              <span class="dim">{words(t.deliveryMode, "DELIVERY_MODE_")} · {many(Number(t.deliveryCount ?? 0), "delivery", "deliveries")}{t.lastDeliveredAt ? <> · last <Age time={t.lastDeliveredAt} /></> : null}{t.expiresAt ? <> · ends <Age time={t.expiresAt} /></> : null}</span>
              {can("WaitingService/CancelExternalTrigger") ? <button type="button" onClick={() => end({ title: "Revoke the trigger", text: "Its address is refused from now on, for good. A wait for it may never end.", path: path + "/triggers/" + t.triggerId })}>Revoke…</button> : null}
            </li>
          ))}</ul>
        ) : <Empty>It has no triggers.</Empty>}
        <More shown={triggers.data?.length ?? 0} more={triggers.more} what="triggers" />
      </Section>
      <Section title="Timers">
        <ErrorNote error={timers.error} />
        {timers.data?.length ? (
          <ul class="cards">{timers.data.map((t) => (
            <li key={t.timerId}>
              <strong>{t.description || t.timerId}</strong>
              <span class="dim">next <Age time={t.nextFireAt} />{t.every ? <> · every {t.every}</> : null} · fired {many(Number(t.fireCount ?? 0), "time")}</span>
              {can("WaitingService/CancelTimer") ? <button type="button" onClick={() => end({ title: "Cancel the timer", text: "It does not fire any more.", path: path + "/timers/" + t.timerId })}>Cancel…</button> : null}
            </li>
          ))}</ul>
        ) : <Empty>It has no timers.</Empty>}
        <More shown={timers.data?.length ?? 0} more={timers.more} what="timers" />
      </Section>
      {ending ? <Confirm title={ending.title} text={ending.text} action={ending.title} keep="Keep it" danger close={() => end(undefined)} act={() => mutate("POST", ending.path + ":cancel").then(changed)} /> : null}
    </>
  );
}

/** weak says why nothing ends a wait. */
const weak: Record<string, string> = {
  WEAK_REASON_NO_LIVE_TRIGGER: "Nothing can end this: the agent has no live trigger.",
  WEAK_REASON_TRIGGER_DEAD: "Nothing can end this: its trigger was cancelled or has expired.",
  WEAK_REASON_CHILD_ASKS: "It cannot end before its child, which asks something, is answered.",
  WEAK_REASON_SUPERVISOR_MUST_ANSWER: "Only the child's supervisor can answer.",
};

/** WaitCard shows one wait. */
export function WaitCard({ wait: w, children }: { wait: Wait; children?: preact.ComponentChildren }) {
  return (
    <article class="message">
      <header>
        <Badge value={w.kind === "WAIT_KIND_OPERATOR" ? "POSTURE_WAITING_OPERATOR" : "POSTURE_WAITING_EXTERNAL"}>{words(w.kind, "WAIT_KIND_")}</Badge>
        <span class="dim">{w.mode === "WAIT_MODE_INTENT" ? "interest, stops nothing · " : ""}since <Age time={w.createdAt} />{w.dueAt ? <> · due <Age time={w.dueAt} /></> : null}{w.triggered ? " · triggered" : ""}</span>
        <span class="aside">{children}</span>
      </header>
      <Prose text={w.reason || w.condition} />
      {w.resourceDescription || w.resource ? <p class="dim">for {w.resourceDescription} <code>{w.resource}</code></p> : null}
      {w.weakReason && w.weakReason !== "WEAK_REASON_UNSPECIFIED" ? <p class="note bad">{weak[w.weakReason] ?? words(w.weakReason, "WEAK_REASON_")}</p> : null}
    </article>
  );
}

