import { useState } from "preact/hooks";
import { enc, get, query } from "./api";
import { agentPath } from "./fleet";
import { usePages, useRead } from "./hooks";
import type { Part } from "./lists";
import { because, count, many, words } from "./text";
import type { Message } from "./types";
import { Age, Badge, Empty, ErrorNote, Loading, More, Prose, Section } from "./ui";

const bands: Record<string, number> = { PRIORITY_INTERJECT: 0, PRIORITY_NEXT: 1, PRIORITY_BACKGROUND: 3 };
const bandOf = (m: Message) => bands[m.priority ?? ""] ?? 2;
const isTick = (m: Message) => m.kind === "MESSAGE_KIND_SYSTEM_TICK";

/** asTaken returns messages, which are in the order of their arrival, in that in which turns take them: by priority, and no tick before an operator's prompt. */
export function asTaken(arrived: Message[]): Message[] {
  return [0, 1, 2, 3].flatMap((b) => {
    const band = arrived.filter((m) => bandOf(m) === b);
    const prompts = band.findLastIndex((m) => m.kind === "MESSAGE_KIND_OPERATOR_PROMPT") + 1;
    const first = band.slice(0, prompts);
    return [...first.filter((m) => !isTick(m)), ...first.filter(isTick), ...band.slice(prompts)];
  });
}

/** step is how many messages are drawn at first, and further ones each time. */
const step = 50;
/** readAtOnce is how many are read for that, so that their order is known. */
const readAtOnce = 500;

/** Lane shows what is queued for an agent, in the order in which turns take it, and what failed. sent is the message that was sent here last. */
export function Lane({ id, version, total, sent }: Part & { total: number; sent?: string }) {
  const [drawn, draw] = useState(step);
  const list = (state: string, size: number) => usePages<Message>(async (page_token, page_size, s) => {
    const p = await get<{ messages?: Message[]; nextPageToken?: string }>(agentPath(id) + "/messages" + query({ state, page_size, page_token }), s);
    return { rows: p.messages, next: p.nextPageToken };
  }, size, [id, state], version);
  const queued = list("MESSAGE_STATE_QUEUED", readAtOnce);
  const failed = list("MESSAGE_STATE_QUARANTINED", 20);
  const all = queued.more ? queued.data ?? [] : asTaken(queued.data ?? []);
  const shown = all.slice(0, drawn);
  const far = useRead<{ message?: Message } | undefined>((s) => (sent && queued.more ? get(agentPath(id) + "/messages/" + enc(sent), s) : Promise.resolve(undefined)), [id, sent, !!queued.more], version);
  const at = all.findIndex((m) => m.messageId === sent);
  const own = at >= drawn ? all[at] : at < 0 && far.data?.message?.state === "MESSAGE_STATE_QUEUED" ? far.data.message : undefined;
  const whole = Math.max(all.length, queued.more ? total : 0);
  const more = drawn < all.length || queued.more ? () => {
    if (drawn + step > all.length) queued.more?.();
    draw(drawn + step);
  } : undefined;
  return (
    <Section title="Lane" aside={<span class="dim">{queued.more ? "messages that wait for a turn, in the order in which they came" : "messages that wait for a turn, the next one first"}</span>}>
      <ErrorNote error={queued.error ?? failed.error} />
      {failed.data?.map((m) => <Card key={m.messageId} message={m} />)}
      <More shown={failed.data?.length ?? 0} more={failed.more} what="failed messages" />
      {shown.map((m) => <Card key={m.messageId} message={m} />)}
      {own ? (
        <>
          <p class="more dim">{at > drawn ? "… " + many(at - drawn, "message") + " between …" : "…"}</p>
          <Card message={own} note={"what you sent" + (at < 0 ? "" : ", number " + count(at + 1))} />
        </>
      ) : null}
      <More shown={shown.length} total={whole} more={more} what="messages" />
      {queued.data && failed.data && !all.length && !failed.data.length ? <Empty>No message is queued.</Empty> : !queued.data && !queued.error ? <Loading /> : null}
    </Section>
  );
}

function Card({ message: m, note }: { message: Message; note?: string }) {
  return (
    <article class="message">
      <header>
        <Badge value={m.state} prefix="MESSAGE_STATE_" /> <span>{words(m.kind, "MESSAGE_KIND_")}</span>
        <span class="dim">{words(m.origin, "ORIGIN_")} · {words(m.priority, "PRIORITY_")}{m.attempts ? " · " + many(m.attempts, "attempt") : ""} · <Age time={m.createdAt} />{note ? " · " + note : ""}</span>
      </header>
      <Prose text={m.text} most={500} />
      {m.stateReason ? <p class="dim">{because(m.stateReason)}</p> : null}
    </article>
  );
}
