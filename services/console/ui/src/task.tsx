import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, enc, get, lines, mutate, pause, query } from "./api";
import { agentPath } from "./fleet";
import { href, useLive, useRead } from "./hooks";
import { useCan } from "./session";
import { bytes, words } from "./text";
import type { Task } from "./types";
import { Age, Badge, Confirm, ErrorNote, Loading, Section, useAct } from "./ui";

/** keptOutput is how many characters of output a page keeps. */
const keptOutput = 400_000;

interface Chunk {
  chunk?: { offset?: string; stream?: string; data?: string };
  ended?: Task;
}

/** decodeBase64 returns the bytes of a chunk. */
function decodeBase64(data: string): Uint8Array {
  return Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
}

/** keptPieces is of how many pieces, as the output changes between the streams. */
const keptPieces = 4000;

/** Piece is output of one stream in a row. */
interface Piece {
  err: boolean;
  text: string;
}

/** append adds output to pieces, of which it keeps the last characters. */
function append(pieces: Piece[], more: Piece[]): { pieces: Piece[]; cut: boolean } {
  const out = [...pieces];
  for (const p of more) {
    const last = out.at(-1);
    if (last?.err === p.err) out[out.length - 1] = { err: p.err, text: last.text + p.text };
    else out.push(p);
  }
  let over = out.reduce((n, p) => n + p.text.length, 0) - keptOutput;
  const cut = over > 0;
  while (over > 0 && over >= out[0]!.text.length) over -= out.shift()!.text.length;
  if (over > 0) out[0] = { err: out[0]!.err, text: out[0]!.text.slice(over) };
  return { pieces: out.slice(-keptPieces), cut: cut || out.length > keptPieces };
}

/** useOutput follows the output of a task from its last 200 kB on. */
function useOutput(agent: string, id: string, ended: () => void) {
  const [pieces, setPieces] = useState<Piece[]>([]);
  const [error, setError] = useState<ApiError>();
  const [cut, setCut] = useState(false);
  useEffect(() => {
    const abort = new AbortController();
    const decoders = { out: new TextDecoder(), err: new TextDecoder() };
    let next: number | undefined;
    let waiting: Piece[] = [];
    let frame = 0;
    const draw = () => {
      frame = 0;
      const more = waiting;
      waiting = [];
      setPieces((old) => {
        const all = append(old, more);
        if (all.cut) setCut(true);
        return all.pieces;
      });
    };
    const run = async () => {
      let delay = 250;
      while (!abort.signal.aborted) {
        try {
          const path = agentPath(agent) + "/tasks/" + enc(id) + "/output:follow" + query({ offset: next ?? -200_000 });
          for await (const { value: m } of lines<Chunk>(path, abort.signal, () => setError(undefined))) {
            delay = 250;
            if (m.ended) {
              ended();
              return;
            }
            if (!m.chunk) continue;
            const data = decodeBase64(m.chunk.data ?? "");
            const offset = Number(m.chunk.offset ?? 0);
            if (next === undefined ? offset > 0 : offset > next) setCut(true);
            next = offset + data.length;
            const err = m.chunk.stream === "OUTPUT_STREAM_STDERR";
            const all = append(waiting, [{ err, text: decoders[err ? "err" : "out"].decode(data, { stream: true }) }]);
            waiting = all.pieces; // a tab that nobody sees draws no frames
            if (all.cut) setCut(true);
            frame ||= requestAnimationFrame(draw);
          }
        } catch (e) {
          if (abort.signal.aborted) return;
          const err = e as ApiError;
          setError(err);
          if (err.status >= 400 && err.status < 500) return;
        }
        try {
          await pause(delay, abort.signal);
        } catch {
          return;
        }
        delay = Math.min(delay * 2, 8000);
      }
    };
    void run();
    return () => {
      abort.abort();
      cancelAnimationFrame(frame);
    };
  }, [agent, id]);
  return { pieces, error, cut };
}

/** TaskView shows a command with its live output, and takes input. */
export function TaskView({ agent, id }: { agent: string; id: string }) {
  const can = useCan();
  const [version, setVersion] = useState(0);
  const changed = () => setVersion((v) => v + 1);
  const path = agentPath(agent) + "/tasks/" + enc(id);
  const read = useRead<{ task: Task }>((s) => get(path, s), [agent, id], version);
  useLive({ agentId: agent, planes: ["task"] }, (b) => b.some((e) => e.taskId === id) && changed(), changed, can("EventService/WatchEvents"));
  const out = useOutput(agent, id, changed);
  const [which, setWhich] = useState<"both" | "out" | "err">("both");
  const [stopping, setStopping] = useState(false);
  const t = read.data?.task;
  const box = useRef<HTMLPreElement>(null);
  const stick = useRef(true);
  useEffect(() => {
    if (box.current && stick.current) box.current.scrollTop = box.current.scrollHeight;
  }, [out.pieces]);
  if (!t) return <div class="page"><header class="head"><h1>{id}</h1></header>{read.error ? <ErrorNote error={read.error} again={read.again} /> : <Loading />}</div>;
  const over = !!t.terminal;
  return (
    <div class="page fill">
      <header class="head">
        <div>
          <a class="back" href={href(["agents", agent], { tab: "tasks" })}>{agent}</a>
          <h1 class="mono">{t.label || id} <Badge value={t.state} prefix="TASK_STATE_" /></h1>
          <p class="reason">{t.endMessage || t.queueMessage || (t.startedAt && !over ? "It is running." : "")}</p>
        </div>
        {can("TaskService/StopTask") ? <div class="tools"><button type="button" class="danger" disabled={over} title={over ? "It has ended." : ""} onClick={() => setStopping(true)}>Stop</button></div> : null}
      </header>
      <ErrorNote error={read.error} />
      <dl class="facts">
        <div><dt>worker</dt><dd>{t.workerId || "none yet"}</dd></div>
        <div><dt>started</dt><dd><Age time={t.startedAt} /></dd></div>
        {t.endedAt ? <div><dt>ended</dt><dd><Age time={t.endedAt} /> {words(t.endReason, "TASK_END_REASON_")}</dd></div> : null}
        {t.exitCode !== undefined ? <div><dt>exit code</dt><dd>{t.exitCode}</dd></div> : null}
        <div><dt>output</dt><dd>{bytes(t.outputBytes)}</dd></div>
        {t.workItemId ? <div><dt>item</dt><dd class="mono">{t.workItemId}</dd></div> : null}
        {t.childAgentId ? <div><dt>child</dt><dd><a href={href(["agents", t.childAgentId])}>{t.childAgentId}</a></dd></div> : null}
      </dl>
      <Section title="Output" aside={<>
        {out.cut ? <span class="dim">the beginning is not shown</span> : null}
        {out.pieces.some((p) => p.err) ? (
          <select aria-label="Which output" value={which} onChange={(e) => setWhich(e.currentTarget.value as typeof which)}>
            <option value="both">all output, stderr in red</option>
            <option value="out">stdout only</option>
            <option value="err">stderr only</option>
          </select>
        ) : null}
      </>}>
        <ErrorNote error={out.error} />
        <pre class="output" ref={box} tabIndex={0} role="log" aria-label="Output" onScroll={(e) => {
          const el = e.currentTarget;
          stick.current = el.scrollHeight - el.scrollTop - el.clientHeight < 30;
        }}>{out.pieces.length ? out.pieces.filter((p) => which === "both" || p.err === (which === "err")).map((p, i) => (p.err ? <span key={i} class="err" title="stderr">{p.text}</span> : <span key={i}>{p.text}</span>)) : over ? "It wrote nothing." : ""}</pre>
      </Section>
      {can("TaskService/SendTaskInput") ? <Input path={path} task={t} /> : null}
      {stopping ? <Confirm title="Stop the task" action="Stop the task" danger text={<>Its processes are ended: <q>{t.label}</q></>} close={() => setStopping(false)} act={() => mutate("POST", path + ":stop").then(changed)} /> : null}
    </div>
  );
}

function Input({ path, task: t }: { path: string; task: Task }) {
  const [text, setText] = useState("");
  const { busy, error, run } = useAct();
  if (!t.acceptsInputNow) return <p class="dim">{t.terminal ? "It has ended and takes no input." : "It takes no input: it was started without an open standard input, or that was closed."}</p>;
  const send = (endOfInput: boolean) => run(async () => {
    const r = await mutate<{ acceptedInput?: boolean; reason?: string }>("POST", path + ":input", { ...(text ? { text: text + "\n" } : {}), ...(endOfInput ? { endOfInput } : {}) });
    if (!r.acceptedInput) throw new ApiError(409, (r.reason ?? "").toUpperCase(), "the input was not accepted: " + words(r.reason, ""));
    setText("");
  });
  return (
    <form class="say" onSubmit={(e) => { e.preventDefault(); void send(false); }}>
      <input aria-label="Input" class="mono" placeholder="A line of input" value={text} onInput={(e) => setText(e.currentTarget.value)} />
      <button type="submit" class="primary" disabled={busy || !text}>Send</button>
      <button type="button" disabled={busy} onClick={() => void send(true)}>End of input</button>
      <ErrorNote error={error} />
    </form>
  );
}
