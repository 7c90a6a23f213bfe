import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { firstLine, words } from "./text";
import type { Step } from "./types";
import { toneOf } from "./ui";

/** Request is what the worker is asked to lay out. */
export interface Request {
  generation: number;
  nodes: { id: string; width: number; height: number }[];
  edges: [string, string][];
}

/** Laid is what it answers. */
export interface Laid {
  generation: number;
  width: number;
  height: number;
  nodes: Record<string, { x: number; y: number }>;
  edges: { from: string; to: string; points: { x: number; y: number }[] }[];
}

/** most is how many steps are drawn one by one; above it those of a layer with the same status are one node. */
const most = 500;
const width = 168;
const height = 40;

interface Node {
  id: string;
  title: string;
  status: string;
  steps: string[];
}

/** collapse makes one node of the steps of each layer that have the same status. */
function collapse(steps: Step[]): { nodes: Node[]; edges: [string, string][] } {
  const byId = new Map(steps.map((s) => [s.stepId, s]));
  const depth = new Map<string, number>();
  // Steps are in the order in which they were added, which need not be that of their dependencies.
  const visit = (start: string) => {
    const stack = [start];
    while (stack.length) {
      const id = stack[stack.length - 1]!;
      const deps = (byId.get(id)?.dependsOnStepIds ?? []).filter((d) => byId.has(d));
      const open = deps.filter((d) => !depth.has(d));
      if (depth.has(id) || !open.length) {
        depth.set(id, deps.reduce((n, d) => Math.max(n, (depth.get(d) ?? 0) + 1), 0));
        stack.pop();
      } else stack.push(...open);
    }
  };
  steps.forEach((s) => depth.has(s.stepId) || visit(s.stepId));
  const groups = new Map<string, Node>();
  const groupOf = (s: Step) => "layer " + depth.get(s.stepId) + " " + s.status;
  for (const s of steps) {
    const id = groupOf(s);
    const g = groups.get(id) ?? { id, title: "", status: s.status ?? "", steps: [] };
    g.steps.push(s.stepId);
    groups.set(id, g);
  }
  const edges = new Map<string, [string, string]>();
  for (const s of steps) for (const d of s.dependsOnStepIds ?? []) {
    const from = byId.get(d);
    if (!from) continue;
    const e: [string, string] = [groupOf(from), groupOf(s)];
    edges.set(e.join("\n"), e);
  }
  for (const g of groups.values()) g.title = g.steps.length === 1 ? byId.get(g.steps[0]!)!.title || g.steps[0]! : g.steps.length + " steps " + words(g.status, "STEP_STATUS_");
  return { nodes: [...groups.values()], edges: [...edges.values()] };
}

function exact(steps: Step[]): { nodes: Node[]; edges: [string, string][] } {
  const known = new Set(steps.map((s) => s.stepId));
  return {
    nodes: steps.map((s) => ({ id: s.stepId, title: s.title || s.stepId, status: s.status ?? "", steps: [s.stepId] })),
    edges: steps.flatMap((s) => (s.dependsOnStepIds ?? []).filter((d) => known.has(d)).map((d): [string, string] => [d, s.stepId])),
  };
}

/** workerURL returns where the script of the worker is, as the page says. */
function workerURL(): string {
  return document.querySelector<HTMLMetaElement>('meta[name="layout-worker"]')?.content ?? "";
}

interface Policies {
  createPolicy(name: string, rules: { createScriptURL(url: string): string }): { createScriptURL(url: string): string };
}

let policy: { createScriptURL(url: string): string } | undefined;

/** startWorker starts the worker. Where the browser demands trusted types, only its own script is trusted. */
function startWorker(): Worker {
  const url = new URL(workerURL(), document.baseURI).href;
  const factory = (globalThis as unknown as { trustedTypes?: Policies }).trustedTypes;
  policy ??= factory?.createPolicy("quartet", {
    createScriptURL: (u) => {
      if (u !== url) throw new TypeError("no script of the console: " + u);
      return u;
    },
  });
  return new Worker(policy ? policy.createScriptURL(url) : url, { type: "module" });
}

/** Graph draws the steps of a board by their dependencies. */
export function Graph({ steps, open }: { steps: Step[]; open: (stepIds: string[]) => void }) {
  const collapsed = steps.length > most;
  const { nodes, edges } = useMemo(() => (collapsed ? collapse(steps) : exact(steps)), [steps, collapsed]);
  const [laid, setLaid] = useState<Laid>();
  const [failed, setFailed] = useState("");
  const worker = useRef<Worker | undefined>(undefined);
  const generation = useRef(0);
  const shape = nodes.map((n) => n.id).join("\n") + "\n\n" + edges.map((e) => e.join("\t")).join("\n");
  useEffect(() => {
    try {
      worker.current = startWorker();
    } catch (e) {
      setFailed(String(e));
      return;
    }
    worker.current.onmessage = (e: MessageEvent<Laid>) => e.data.generation === generation.current && setLaid(e.data);
    worker.current.onerror = (e) => setFailed(e.message || "the script that lays it out could not be loaded");
    return () => worker.current?.terminate();
  }, []);
  useEffect(() => {
    const r: Request = { generation: ++generation.current, nodes: nodes.map((n) => ({ id: n.id, width, height })), edges };
    worker.current?.postMessage(r);
  }, [shape]);
  if (failed) return <p class="note bad" role="alert">The graph cannot be drawn: {failed}. The steps are in the tab Steps.</p>;
  if (!laid) return <p class="empty" role="status">Laying out {nodes.length} {collapsed ? "groups of steps" : "steps"}…</p>;
  return (
    <div class="graph" tabIndex={0} role="region" aria-label={"Graph of " + steps.length + " steps"}>
      {collapsed ? <p class="dim">{steps.length} steps: those of a layer with the same status are drawn as one.</p> : null}
      <svg width={laid.width} height={laid.height} viewBox={`0 0 ${laid.width} ${laid.height}`} role="group" aria-label="Steps">
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
        {laid.edges.map((e) => <path key={e.from + "\n" + e.to} class="edge" marker-end="url(#arrow)" d={curve(e.points)} />)}
        {nodes.map((n) => {
          const at = laid.nodes[n.id];
          if (!at) return null;
          const status = words(n.status, "STEP_STATUS_");
          return (
            <g key={n.id} class={"node " + toneOf(n.status)} transform={`translate(${at.x - width / 2} ${at.y - height / 2})`} role="button" tabindex={0} aria-label={n.title + ", " + status}
              onClick={() => open(n.steps)} onKeyDown={(e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); open(n.steps); } }}>
              <rect width={width} height={height} rx="6" />
              <text x="10" y="17">{firstLine(n.title, 22)} </text>
              <text x="10" y="32" class="sub">{status}</text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}

function curve(points: { x: number; y: number }[]): string {
  return points.map((p, i) => (i ? "L" : "M") + p.x.toFixed(1) + " " + p.y.toFixed(1)).join("");
}
