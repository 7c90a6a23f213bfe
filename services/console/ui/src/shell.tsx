import { useContext, useEffect, useState } from "preact/hooks";
import { end } from "./api";
import { Admin } from "./admin";
import { AgentView } from "./agent";
import { BoardView } from "./board";
import { Events } from "./events";
import { Fleet } from "./fleet";
import { href, type Route, useLiveState, usePoll, useRoute } from "./hooks";
import { Inbox } from "./inbox";
import { Mark } from "./login";
import { can, Me, roleOf } from "./session";
import { TaskView } from "./task";
import { count, many } from "./text";
import { Icon } from "./ui";

const views = [
  { id: "fleet", title: "Fleet", icon: "fleet" },
  { id: "inbox", title: "Inbox", icon: "inbox" },
  { id: "events", title: "Events", icon: "events" },
  { id: "admin", title: "Admin", icon: "admin" },
] as const;

function View({ route }: { route: Route }) {
  const [view = "fleet", id = "", kind = "", sub = ""] = route.path;
  if (view === "agents" && id && kind === "boards" && sub) return <BoardView key={id + "/" + sub} session={id} id={sub} route={route} />;
  if (view === "agents" && id && kind === "tasks" && sub) return <TaskView key={id + "/" + sub} agent={id} id={sub} />;
  if (view === "agents" && id) return <AgentView key={id} id={id} route={route} />;
  if (view === "inbox") return <Inbox />;
  if (view === "events") return <Events route={route} />;
  if (view === "admin") return <Admin route={route} />;
  return <Fleet route={route} />;
}

/** Shell is the frame around all views. */
export function Shell() {
  const me = useContext(Me);
  const route = useRoute();
  const needs = usePoll<{ needAttention?: number }>("agents:count", 5000, can(me, "FleetService/CountAgents")).data?.needAttention ?? 0;
  const shown = route.path[0] === "agents" ? "fleet" : route.path[0] ?? "fleet";
  const title = route.path[0] === "agents" ? route.path.slice(1).join(" / ") : views.find((v) => v.id === shown)?.title ?? "Fleet";
  useEffect(() => {
    document.title = title + " · Quartet";
  }, [title]);
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
      <header class="bar">
        <a class="brand" href={href(["fleet"])}><Mark /> Quartet</a>
        <nav aria-label="Views">
          {views.map((v) => (
            <a key={v.id} href={href([v.id])} aria-current={shown === v.id ? "page" : undefined}><Icon name={v.icon} /><span>{v.title}{v.id === "inbox" && needs ? <> <b title={many(needs, "agent needs", "agents need") + " a person"}>{count(needs)}</b></> : null}</span></a>
          ))}
        </nav>
        <Live />
        <div class="who">
          <span title={"namespace " + me.namespace + ", version " + me.serverVersion}>
            <strong>{me.principal}</strong> <span class="dim">{roleOf(me)} · {me.namespace}</span>
          </span>
          <ThemeButton />
          <button type="button" class="quiet" aria-label="Sign out" title="Sign out" onClick={() => void end().finally(() => location.reload())}><Icon name="out" /></button>
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {can(me, "AgentService/ListAgents") ? <View route={route} /> : (
          <p class="note">The role {roleOf(me)} reads no agents; sign in with the key of an operator or an admin.</p>
        )}
      </main>
    </div>
  );
}

function Live() {
  const { state, reason } = useLiveState();
  const text = { idle: "", connecting: "connecting", live: "live", lost: "reconnecting" }[state];
  return <span class={"live " + state} role="status" title={reason}>{text}</span>;
}

function ThemeButton() {
  const [theme, setTheme] = useState(() => stored());
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  }, [theme]);
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const next = dark ? "light" : "dark";
  return (
    <button type="button" class="quiet" aria-label={"Use " + next + " colours"} title={"Use " + next + " colours"} onClick={() => {
      setTheme(next);
      try {
        localStorage.setItem("quartet-theme", next);
      } catch {
        // The choice lasts until the page is closed.
      }
    }}><Icon name="sun" /></button>
  );
}

function stored(): string {
  try {
    const t = localStorage.getItem("quartet-theme");
    return t === "dark" || t === "light" ? t : "";
  } catch {
    return "";
  }
}
