// Who is signed in, and what that role may do.

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import roles from "./roles.json";
import type { WhoAmI } from "./types";
import { words } from "./text";

/** Me is the identity of the session, as the server sees it. */
export const Me = createContext<WhoAmI>({});

const letters: Record<string, string> = {
  ROLE_ADMIN: "A", ROLE_OPERATOR: "O", ROLE_RUNNER: "R", ROLE_AGENT: "G", ROLE_WORKER: "W", ROLE_INTEGRATION: "I",
};

/** can reports whether a role may call a method. The table is that of docs/roles.md, which a test compares; the server decides. */
export function can(me: WhoAmI, method: keyof typeof roles): boolean {
  const who: string = roles[method];
  if (me.role === "ROLE_INSTALLATION_ADMIN") return who.includes("N") || who.includes("A");
  return who.includes(letters[me.role ?? ""] ?? "?");
}

/** useCan returns can for the session. */
export function useCan() {
  const me = useContext(Me);
  return (method: keyof typeof roles) => can(me, method);
}

/** roleOf writes the role of an identity. */
export const roleOf = (me: WhoAmI) => words(me.role, "ROLE_");

/** whoMay names the roles that may call a method. */
export function whoMay(method: keyof typeof roles): string {
  const who: string = roles[method];
  const names = Object.entries(letters).filter(([, l]) => who.includes(l)).map(([r]) => words(r, "ROLE_"));
  return names.length ? names.join(", ") : "installation admin";
}
