// A runner's loop over the REST API, typed by the generated description of it.
import createClient from "openapi-fetch";
import { randomUUID } from "node:crypto";
import type { components, paths } from "./api.js";
import { localCredential, oneAddress } from "./token.js";

type Schemas = components["schemas"];
export type Message = Schemas["v1Message"];
export type ToolCall = Schemas["v1ToolCall"];
export type RoundResult = Schemas["v1SubmitRoundResponse"];

/** An answer that refuses, with its documented reason. */
export class Refused extends Error {
  constructor(readonly status: number, readonly reason: string, message: string) {
    super(`${reason}: ${message}`);
  }
}

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms / 2 + (Math.random() * ms) / 2));

/** Repeats a call while the server is away. Mutations carry an id or an index, so nothing happens twice. */
async function again<T>(call: () => Promise<{ data?: T; error?: unknown; response: Response }>, signal?: AbortSignal): Promise<T> {
  for (let ms = 50; ; ms = Math.min(2 * ms, 2000)) {
    signal?.throwIfAborted();
    try {
      const { data, error, response } = await call();
      if (data !== undefined) return data;
      const info = (error as { error?: { reason?: string; message?: string } } | undefined)?.error;
      if (![429, 502, 503, 504].includes(response.status)) throw new Refused(response.status, info?.reason ?? "UNKNOWN", info?.message ?? response.statusText);
    } catch (e) {
      // fetch says TypeError where there was no answer at all.
      if (!(e instanceof TypeError)) throw e;
    }
    await pause(ms);
  }
}

/** One conversational execution that this runner holds. */
export class Turn {
  private index = 0;
  ended = false;
  constructor(
    private readonly api: ReturnType<typeof createClient<paths>>,
    readonly agentId: string,
    readonly turnId: string,
    readonly runId: string,
    readonly message: Message,
    readonly context: string,
    readonly tools: string[],
    /** Aborted when an operator aborts the run, or it is lost. */
    readonly signal: AbortSignal,
  ) {}

  private get path() {
    return { path: { agentId: this.agentId, turnId: this.turnId } };
  }

  /** Submits what the model said; answers one result for each call, and what operators said meanwhile. */
  async round(text: string, calls: { name: string; arguments: Record<string, unknown> }[] = []): Promise<RoundResult> {
    const toolCalls = calls.map((c, i) => ({ callId: `call_${this.index}_${i}`, name: c.name, arguments: c.arguments }));
    const body = { runId: this.runId, roundIndex: this.index, text, toolCalls };
    const got = await again(
      () => this.api.POST("/v1/agents/{agentId}/turns/{turnId}/rounds", { params: this.path, body, signal: this.signal }),
      this.signal,
    );
    this.index++;
    this.ended = got.turnEnded ?? false;
    return got;
  }

  renew = () => this.api.POST("/v1/agents/{agentId}/turns/{turnId}:renew", { params: this.path, body: { runId: this.runId } });

  finish = (outcome: "TURN_OUTCOME_COMPLETED" | "TURN_OUTCOME_RETRYABLE" | "TURN_OUTCOME_FATAL", message: string) =>
    again(() => this.api.POST("/v1/agents/{agentId}/turns/{turnId}:finish", { params: this.path, body: { runId: this.runId, outcome, message } }));
}

/** An error after which trying again would not help. */
export class Fatal extends Error {}

export interface Options {
  baseUrl: string;
  /** A key; without one, the token of the server at a loopback address is read from its file. */
  token?: string;
  agentIds: string[];
  maxTurns?: number;
}

/** Takes turns, keeps their leases, and finishes each by what the handler does: return, throw, or throw Fatal. */
export async function runTurns(o: Options, handle: (turn: Turn) => Promise<void>): Promise<void> {
  const baseUrl = o.token ? o.baseUrl : oneAddress(o.baseUrl);
  const credential = (): Record<string, string> => (o.token ? { Authorization: `Bearer ${o.token}` } : localCredential(baseUrl));
  const api = createClient<paths>({ baseUrl });
  api.use({
    onRequest({ request }) {
      for (const [name, value] of Object.entries(credential())) request.headers.set(name, value);
    },
  });
  for (let n = 0; n < (o.maxTurns ?? Infinity); ) {
    const requestId = randomUUID(); // a lost answer is asked for again under it
    const got = await again(() => api.POST("/v1/turns:acquire", { body: { requestId, agentIds: o.agentIds, runnerId: "typescript", wait: "20s" } }));
    if (got.pending || !got.turn?.turnId || got.turn.state !== "TURN_STATE_OPEN") continue;
    n++;
    const over = new AbortController();
    const turn = new Turn(api, got.turn.agentId!, got.turn.turnId, got.turn.runId!, got.message ?? {}, got.context?.text ?? "", got.tools ?? [], over.signal);
    const beat = setInterval(() => {
      turn.renew().then(({ response }) => {
        if ([409, 412, 400].includes(response.status) && !turn.ended) over.abort(new Error("the run is stale"));
      }, () => undefined); // the server is away; after its restart the lease has a whole term
    }, 10_000);
    const watching = watch(baseUrl, credential, turn, over);
    try {
      await handle(turn);
      if (!turn.ended) await turn.finish("TURN_OUTCOME_COMPLETED", "");
    } catch (e) {
      if (!over.signal.aborted) await turn.finish(e instanceof Fatal ? "TURN_OUTCOME_FATAL" : "TURN_OUTCOME_RETRYABLE", String(e));
    } finally {
      clearInterval(beat);
      turn.ended = true;
      over.abort();
      await watching;
    }
  }
}

/** Follows the turn's stream of lines and aborts the signal when the turn is taken from this runner. */
async function watch(baseUrl: string, credential: () => Record<string, string>, turn: Turn, over: AbortController): Promise<void> {
  const url = `${baseUrl}/v1/agents/${turn.agentId}/turns/${turn.turnId}:watch?run_id=${turn.runId}`;
  while (!over.signal.aborted) {
    try {
      const response = await fetch(url, { headers: credential(), signal: over.signal });
      if (response.status === 501 || !response.body) return; // an older server: renew tells
      let rest = "";
      for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
        const lines = (rest + chunk).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines.filter(Boolean)) {
          const ended = (JSON.parse(line) as { result?: Schemas["v1WatchTurnResponse"] }).result?.ended;
          if (!ended) continue;
          if (ended.state !== "TURN_STATE_COMPLETED") over.abort(new Error(`the turn ended: ${ended.endReason}`));
          return;
        }
      }
    } catch {
      // the connection was lost, or the turn is over
    }
    if (!over.signal.aborted) await pause(200);
  }
}
