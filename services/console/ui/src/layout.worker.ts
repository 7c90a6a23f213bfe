// Lays out the graph of a board, away from the thread that draws the page.

import { graphlib, layout } from "@dagrejs/dagre";
import type { Laid, Request } from "./graph";

onmessage = (e: MessageEvent<Request>) => {
  const g = new graphlib.Graph();
  g.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 46, marginx: 12, marginy: 12, ranker: e.data.nodes.length > 200 ? "longest-path" : "network-simplex" });
  g.setDefaultEdgeLabel(() => ({}));
  for (const n of e.data.nodes) g.setNode(n.id, { width: n.width, height: n.height });
  for (const [from, to] of e.data.edges) g.setEdge(from, to);
  layout(g);
  const size = g.graph();
  const out: Laid = {
    generation: e.data.generation,
    width: size.width ?? 0,
    height: size.height ?? 0,
    nodes: Object.fromEntries(e.data.nodes.map((n) => {
      const at = g.node(n.id) as unknown as { x: number; y: number };
      return [n.id, { x: at.x, y: at.y }];
    })),
    edges: g.edges().map((x) => ({ from: x.v, to: x.w, points: (g.edge(x) as unknown as { points: { x: number; y: number }[] }).points })),
  };
  postMessage(out);
};
