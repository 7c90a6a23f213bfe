// A runner in TypeScript: node dist/main.js http://127.0.0.1:7480 AGENT [TURNS]
import { runTurns, type Turn } from "./quartet.js";

const [baseUrl = "http://127.0.0.1:7480", agentId = "keeper", turns] = process.argv.slice(2);

/** Stands for a model: it makes an item of its message, runs a command for it, and reports. */
async function think(turn: Turn): Promise<void> {
  console.log(`asked to: ${turn.message.text}`);
  if (turn.message.text === "wait to be aborted") {
    await new Promise((_, reject) => turn.signal.addEventListener("abort", () => reject(turn.signal.reason)));
  }
  const made = await turn.round("I make an item of it.", [{ name: "CreateWorkItem", arguments: { objective: turn.message.text, plan_status: "ready" } }]);
  const item = field(made.toolResults?.[0]?.result, "work_item", "work_item_id");
  const ran = await turn.round("", [
    { name: "PickWorkItem", arguments: { work_item_id: item } },
    { name: "ExecCommand", arguments: { cmd: "echo from typescript" } },
  ]);
  const output = field(ran.toolResults?.[1]?.result, "output").trim();
  const done = await turn.round(`It said: ${output}.`, [{ name: "CompleteWorkItem", arguments: { work_item_id: item } }]);
  console.log(`reported: ${done.promotedWorkItemId === item}`);
}

function field(v: unknown, ...path: string[]): string {
  for (const p of path) v = (v as Record<string, unknown> | undefined)?.[p];
  if (typeof v !== "string") throw new Error(`the result has no ${path.join(".")}`);
  return v;
}

await runTurns({ baseUrl, agentIds: [agentId], ...(turns ? { maxTurns: Number(turns) } : {}) }, async (turn) => {
  try {
    await think(turn);
  } catch (e) {
    console.log(`failed: ${e instanceof Error ? e.message : e}`);
    throw e;
  }
});
