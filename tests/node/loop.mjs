// One full loop from Node: an operator's message, a turn, a command, a wait for
// its result, a report. Run as: node loop.mjs ADDRESS PROTO_DIR
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { homedir } from "node:os";

const [address, protoDir] = process.argv.slice(2);
const files = ["agent", "work", "task", "waiting", "scheduler"].map((p) => `quartet/${p}/v1/${p}_service.proto`);
const definition = loader.loadSync(files, { includeDirs: [protoDir], keepCase: true, enums: String, longs: Number, defaults: true });
const api = grpc.loadPackageDefinition(definition).quartet;

// The token of the server, in the file of its address: a line "Authorization: Bearer …".
const state = process.env.XDG_STATE_HOME ?? `${homedir()}/.local/state`;
const [, token] = readFileSync(`${state}/quartet/${address}`, "utf8").trim().split(": ");
const credential = new grpc.Metadata();
credential.set("authorization", token);

const connect = (Service) => {
  const client = new Service(address, grpc.credentials.createInsecure());
  return (method, request) =>
    new Promise((resolve, reject) => {
      client[method](request, credential, { deadline: Date.now() + 60_000 }, (err, reply) => (err ? reject(err) : resolve(reply)));
    });
};
const agents = connect(api.agent.v1.AgentService);
const work = connect(api.work.v1.WorkService);
const scheduler = connect(api.scheduler.v1.SchedulerService);

// google.protobuf.Struct as grpc-js knows it.
const value = (v) =>
  typeof v === "string" ? { stringValue: v } : typeof v === "boolean" ? { boolValue: v } : Array.isArray(v) ? { listValue: { values: v.map(value) } } : { structValue: struct(v) };
const struct = (o) => ({ fields: Object.fromEntries(Object.entries(o).map(([k, v]) => [k, value(v)])) });
const field = (s, ...path) => path.reduce((at, name) => at?.fields?.[name]?.structValue ?? at?.fields?.[name], s)?.stringValue;

const agent_id = "node-agent";
await agents("SpawnAgent", { agent_id, request_id: "spawn", preset: "PRESET_PUBLIC_NAMED" });
await agents("EnqueueMessage", { agent_id, request_id: "hello", text: "count to three" });

const acquire = async () => {
  for (;;) {
    const got = await agents("AcquireTurn", { agent_ids: [agent_id], runner_id: "node", wait: { seconds: 20 } });
    if (!got.pending) return got;
  }
};
const round = (turn, index, text, ...calls) =>
  agents("SubmitRound", {
    agent_id, turn_id: turn.turn_id, run_id: turn.run_id, round_index: index, text,
    tool_calls: calls.map(([name, args], i) => ({ call_id: `c${index}.${i}`, name, arguments: struct(args) })),
  });
const ok = (reply) => {
  for (const r of reply.tool_results) assert.equal(r.status, "TOOL_STATUS_SUCCESS", JSON.stringify(r.error));
  return reply.tool_results.map((r) => r.result);
};

// The first turn: make an item, start a command, wait for it.
let got = await acquire();
assert.equal(got.message.text, "count to three");
const [made] = ok(await round(got.turn, 0, "", ["CreateWorkItem", { objective: "Count to three", plan_status: "ready" }]));
const item = field(made, "work_item", "work_item_id");
const [, ran] = ok(await round(got.turn, 1, "", ["PickWorkItem", { work_item_id: item }], ["ExecCommand", { cmd: "sleep 0.3; echo 1 2 3", yield_time: "0s" }]));
const task = field(ran, "handle", "task_id");
const waited = await round(got.turn, 2, "", ["WaitFor", { wake: "task_result", resource: task, reason: "counting" }]);
ok(waited);
assert.ok(waited.turn_ended, "WaitFor ends the turn");

// The second: the result is there; report it.
got = await acquire();
assert.equal(got.message.kind, "MESSAGE_KIND_TASK_RESULT");
assert.match(got.message.text, /1 2 3/);
ok(await round(got.turn, 0, "", ["PickWorkItem", { work_item_id: item }]));
const done = await round(got.turn, 1, "Counted: 1 2 3.", ["CompleteWorkItem", { work_item_id: item }]);
ok(done);
assert.equal(done.promoted_work_item_id, item);

const { work_item } = await work("GetWorkItem", { agent_id, work_item_id: item });
assert.equal(work_item.result_summary, "Counted: 1 2 3.");
const { verdict } = await scheduler("Explain", { agent_id });
assert.equal(verdict.action, "DECISION_ACTION_IDLE");
console.log(verdict.explanation);
process.exit(0);
