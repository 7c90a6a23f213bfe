// Where in the console the methods of the API are that messages of the server name as a remedy.

import { href } from "./hooks";

/** Place is a part of the console: of the page of an agent, or a page. */
type Place = { title: string; tab?: string; page?: string[]; params?: Record<string, string> };

/** places has a place for each method that messages name, as services/cli/output/remedy.go has a command. A test compares the two. */
const places: Record<string, Place> = {
  CreateExternalTrigger: { title: "Waiting", tab: "waiting" },
  GetBoard: { title: "Boards", tab: "boards" },
  GetTask: { title: "Tasks", tab: "tasks" },
  ListBoards: { title: "Boards", tab: "boards" },
  ListExternalTriggers: { title: "Waiting", tab: "waiting" },
  ListRounds: { title: "Transcript", tab: "transcript" },
  ListTasks: { title: "Tasks", tab: "tasks" },
  ListTimers: { title: "Waiting", tab: "waiting" },
  ListWaits: { title: "Waiting", tab: "waiting" },
  ListWals: { title: "Boards", tab: "boards" },
  ListWorkItems: { title: "Work", tab: "work" },
  ListWorkers: { title: "Workers, in Admin", page: ["admin"], params: { tab: "workers" } },
  QuerySteps: { title: "Boards", tab: "boards" },
  ResumeAgent: { title: "Resume", tab: "" },
  SendTaskInput: { title: "Tasks", tab: "tasks" },
  SpawnAgent: { title: "New agent, in Fleet", page: ["fleet"] },
  StartAgent: { title: "Start", tab: "" },
  StopTask: { title: "Tasks", tab: "tasks" },
};

/** remedies returns the places of the methods in a message, each once. What is between double quotes is the caller's own text. Without the
 * agent a part of its page has no address. */
export function remedies(message: string, agent?: string): { title: string; to?: string }[] {
  const found = new Map<string, { title: string; to?: string }>();
  for (const name of message.replaceAll(/"[^"]*"/g, " ").match(/\b[A-Z][a-z]+[A-Z][A-Za-z]+\b/g) ?? []) {
    const p = Object.hasOwn(places, name) ? places[name] : undefined;
    if (!p) continue;
    const title = p.page ? p.title : p.title + ", on the page of the agent";
    found.set(title, { title, to: p.page ? href(p.page, p.params) : agent ? href(["agents", agent], { tab: p.tab }) : undefined });
  }
  return [...found.values()];
}

/**
 * plain returns a message of the server as the console shows it: without the clauses that name such a method, and with fields of the request as
 * words. What is between double quotes is left as it is.
 */
export function plain(message: string | undefined, fields: string[] = []): string {
  const text = (message ?? "").split(/("[^"]*")/).map((p, i) => {
    if (i % 2) return p;
    for (const f of fields) p = p.replaceAll(f, f.replaceAll("_", " "));
    return p.replace("must match [a-z0-9][a-z0-9_-]{0,127}", "must be lower-case letters, digits, - and _, and begin with a letter or a digit");
  }).join("");
  const kept = text.split("; ").filter((clause) => !Object.hasOwn(places, clause.split(" ", 1)[0]!));
  return kept.length ? kept.join("; ") : text;
}
