// A session of the official TypeScript client with a server, which is an address or a command.
// It prints what it saw as JSON; the test in Go judges it. The client checks results itself: it
// compiles the output schemas of the tools that it listed, and throws for a result that does not
// match, refusals included.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ResourceUpdatedNotificationSchema, ToolListChangedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

// The header Authorization, for a server over HTTP, is in a variable.
const [first, ...args] = process.argv.slice(2);
const headers = { Authorization: process.env.AUTHORIZATION ?? "" };
const transport = first.startsWith("http") ? new StreamableHTTPClientTransport(new URL(first), { requestInit: { headers } }) : new StdioClientTransport({ command: first, args });
const client = new Client({ name: "independent", version: "1" });

const updates = [];
let updated = () => {};
client.setNotificationHandler(ResourceUpdatedNotificationSchema, (n) => { updates.push(n.params.uri); updated(); });
let toolsChanged;
const changed = new Promise((resolve) => { toolsChanged = resolve; });
client.setNotificationHandler(ToolListChangedNotificationSchema, () => toolsChanged());

await client.connect(transport);
const seen = { capabilities: client.getServerCapabilities(), instructions: client.getInstructions() };
let { tools } = await client.listTools();
if (tools.length === 0) { // a session before its server: this line starts it
  const refused = await client.callTool({ name: "ListWorkItems", arguments: {} });
  seen.absent = { isError: refused.isError, text: refused.content[0].text };
  console.log(JSON.stringify({ absent: seen.absent, instructions: seen.instructions }));
  await changed;
  ({ tools } = await client.listTools());
}
seen.tools = tools.map((t) => t.name);
seen.schemas = tools.filter((t) => t.outputSchema).length;

const call = async (name, args) => (await client.callTool({ name, arguments: args })).structuredContent;
const item = (await call("CreateWorkItem", { objective: "Without a plan" })).result.work_item;
seen.preview = (await call("GetWorkItem", { work_item_id: item.work_item_id })).result.work_item.plan_artifact.preview ?? "";
seen.listed = (await call("ListWorkItems", { filter: "open" })).result.work_items.length;
seen.refused = (await call("CompleteWorkItem", { work_item_id: "nothing" })).error.kind;

const uri = (await client.listResources()).resources.map((r) => r.uri).find((u) => u.includes(item.work_item_id));
const read = await client.readResource({ uri });
seen.contents = read.contents;
if (seen.capabilities.resources.subscribe) {
  await client.subscribeResource({ uri });
  const notified = new Promise((resolve) => { updated = resolve; });
  await call("HomeWrite", { path: `work-items/${item.work_item_id}/plan.md`, text: "1. write one\n" });
  await notified;
  seen.updated = updates;
} else {
  seen.subscribe = await client.subscribeResource({ uri }).then(() => "accepted", (e) => e.message);
}
seen.uri = uri;
await client.close();
console.log(JSON.stringify(seen));
