import { useContext, useState } from "preact/hooks";
import { get, mutate, query } from "./api";
import { go, href, type Route, usePages, useRead } from "./hooks";
import { Me, roleOf, useCan, whoMay } from "./session";
import { bytes, count, words } from "./text";
import type { BoardWorker, Installation, Key } from "./types";
import { Age, Badge, Confirm, Dialog, Empty, ErrorNote, Field, Loading, More, Section, tabOf, Tabs, useAct } from "./ui";
import { UnservedNote, useUnserved } from "./unserved";

/** Admin shows the health of the installation, its processes, keys, quotas and workers. */
export function Admin({ route }: { route: Route }) {
  const me = useContext(Me);
  const can = useCan();
  const tabs = [{ id: "health", title: "Health" }, { id: "usage", title: "Usage" }, { id: "keys", title: "Keys" }, { id: "workers", title: "Workers" }];
  const tab = tabOf(tabs, route);
  return (
    <div class="page">
      <header class="head"><div><h1>Admin</h1><p class="reason">You are {me.principal}, {roleOf(me)} of namespace {me.namespace}. The server is version {me.serverVersion}.</p></div></header>
      <Tabs label="Parts of the administration" value={tab} choose={(t) => go(href(["admin"], { tab: t }), true)} tabs={tabs} />
      <div id="tabpanel" role="tabpanel" aria-labelledby={"tab-" + tab} class="panel">
        {tab === "health" ? (can("IdentityService/ListProcesses") ? <Health /> : <Denied method="IdentityService/ListProcesses" />) : null}
        {tab === "usage" ? (can("IdentityService/GetUsage") ? <Usage /> : <Denied method="IdentityService/GetUsage" />) : null}
        {tab === "keys" ? (can("IdentityService/ListKeys") ? <Keys /> : <Denied method="IdentityService/ListKeys" />) : null}
        {tab === "workers" ? (can("BoardService/ListWorkers") ? <Workers /> : <Denied method="BoardService/ListWorkers" />) : null}
      </div>
    </div>
  );
}

function Denied({ method }: { method: Parameters<typeof whoMay>[0] }) {
  const me = useContext(Me);
  return <p class="note">The role {roleOf(me)} does not see this; it is for: {whoMay(method)}.</p>;
}

function Health() {
  const unserved = useUnserved();
  const p = useRead<Installation>((s) => get("processes?examine=true", s), []);
  const d = p.data;
  if (!d) return p.error ? <ErrorNote error={p.error} again={p.again} /> : <Loading />;
  const used = Number(d.storeUsedBytes ?? 0);
  const limit = Number(d.storeLimitBytes ?? 0);
  return (
    <>
      <ErrorNote error={p.error} />
      <Section title="Problems" aside={<button type="button" onClick={p.again}>Examine again</button>}>
        <UnservedNote unserved={unserved} />
        {d.problems?.length ? d.problems.map((x, i) => (
          <div key={i} class={"note" + (x.down ? " bad" : "")}><p><strong>{x.text}</strong></p><p>{x.remedy}</p></div>
        )) : unserved ? <p>Otherwise everything is served.</p> : <p><Badge value="PROCESS_ANSWER_READY">healthy</Badge> Everything is served.</p>}
      </Section>
      <Section title="Planes">
        <ul class="chips flat">{d.planes?.map((x) => <li key={x.name} class={x.up ? "good" : "bad"}>{x.name} <b>{x.up ? (x.partitions ? x.partitions : "up") : "down"}</b></li>)}</ul>
      </Section>
      <Section title="Store">
        <p>{bytes(used)} {limit ? "of " + bytes(limit) + " in use" : "in use"}{d.storeFullIn ? "; full in " + d.storeFullIn + " at the present rate" : ""}</p>
        {limit ? <meter min={0} max={limit} low={limit * 0.7} high={limit * 0.85} optimum={0} value={used} aria-label="Store in use" /> : null}
      </Section>
      <Section title="Processes">
        <ul class="cards">{d.processes?.map((x) => (
          <li key={x.processId}>
            <Badge value={x.answer} prefix="PROCESS_ANSWER_" />
            <strong>{x.host}</strong> <code>{x.address}</code>
            <span class="dim">{x.services?.join(", ")} · {x.version} · started <Age time={x.startedAt} /></span>
            {[...(x.notReady ?? []), ...(x.damage ?? []), ...(x.removalFailures ?? []), ...(x.warning ? [x.warning] : [])].map((t) => <p key={t} class="note bad">{t}</p>)}
          </li>
        ))}</ul>
      </Section>
      <Section title="Streams">
        <table>
          <thead><tr><th scope="col">stream</th><th scope="col" class="n">messages</th><th scope="col" class="n">size</th></tr></thead>
          <tbody>{d.streams?.map((x) => <tr key={x.name}><td class="mono">{x.name}</td><td class="n">{count(x.messages)}</td><td class="n">{bytes(x.bytes)}{Number(x.maxBytes ?? 0) ? " of " + bytes(x.maxBytes) : ""}</td></tr>)}</tbody>
        </table>
      </Section>
    </>
  );
}

function Usage() {
  const u = useRead<{ namespace?: string; quotas?: { kind: string; limit?: string; value?: string }[] }>((s) => get("usage", s), []);
  if (!u.data) return u.error ? <ErrorNote error={u.error} again={u.again} /> : <Loading />;
  return (
    <Section title={"Namespace " + u.data.namespace}>
      <table>
        <thead><tr><th scope="col">quota</th><th scope="col" class="n">in use</th><th scope="col" class="n">limit</th></tr></thead>
        <tbody>{u.data.quotas?.map((q) => <tr key={q.kind}><td>{q.kind}</td><td class="n">{q.value === undefined ? "per second" : count(q.value)}</td><td class="n">{Number(q.limit ?? 0) ? count(q.limit) : "none"}</td></tr>)}</tbody>
      </table>
    </Section>
  );
}

function Keys() {
  const can = useCan();
  const [ended, setEnded] = useState(false);
  const [version, setVersion] = useState(0);
  const [revoking, setRevoking] = useState<Key>();
  const [creating, setCreating] = useState(false);
  const changed = () => setVersion((v) => v + 1);
  const k = usePages<Key>(async (page_token, page_size, s) => {
    const p = await get<{ keys?: Key[]; nextPageToken?: string }>("keys" + query({ page_size, page_token, include_ended: ended }), s);
    return { rows: p.keys, next: p.nextPageToken };
  }, 100, [ended], version);
  return (
    <Section title="API keys" aside={<>
      <label class="check"><input type="checkbox" checked={ended} onChange={(e) => setEnded(e.currentTarget.checked)} /> also ended ones</label>
      {can("IdentityService/CreateKey") ? <button type="button" class="primary" onClick={() => setCreating(true)}>New key</button> : null}
    </>}>
      <ErrorNote error={k.error} />
      {k.data?.length ? (
        <table>
          <thead><tr><th scope="col">name</th><th scope="col">role</th><th scope="col">namespace</th><th scope="col">state</th><th scope="col">last used</th><th scope="col">id</th><th scope="col"><span class="sr">actions</span></th></tr></thead>
          <tbody>{k.data.map((x) => (
            <tr key={x.keyId}>
              <td>{x.name}</td><td>{words(x.role, "ROLE_")}{x.agentId ? " " + x.agentId : ""}</td><td>{x.namespace}</td>
              <td><Badge value={x.status} prefix="KEY_STATUS_" />{x.expiresAt ? <span class="dim"> ends <Age time={x.expiresAt} /></span> : null}</td>
              <td>{x.lastUsedAt ? <Age time={x.lastUsedAt} /> : "never"}</td><td class="mono">{x.keyId}</td>
              <td>{x.status === "KEY_STATUS_ACTIVE" && can("IdentityService/RevokeKey") ? <button type="button" class="danger" onClick={() => setRevoking(x)}>Revoke</button> : null}</td>
            </tr>
          ))}</tbody>
        </table>
      ) : k.loading ? <Loading /> : <Empty>There are no keys.</Empty>}
      <More shown={k.data?.length ?? 0} more={k.more} what="keys" />
      {revoking ? <Confirm title={"Revoke " + revoking.name} action="Revoke the key" keep="Keep it" danger text="The key is refused from now on, and the streams that it opened end." close={() => setRevoking(undefined)}
        act={() => mutate("POST", "keys/" + revoking.keyId + ":revoke").then(changed)} /> : null}
      {creating ? <CreateKey close={() => setCreating(false)} changed={changed} /> : null}
    </Section>
  );
}

function CreateKey({ close, changed }: { close: () => void; changed: () => void }) {
  const me = useContext(Me);
  const [name, setName] = useState("");
  const [role, setRole] = useState("ROLE_OPERATOR");
  const [namespace, setNamespace] = useState(me.namespace ?? "");
  const [secret, setSecret] = useState("");
  const { busy, error, run } = useAct(changed);
  const roles = ["ROLE_OPERATOR", "ROLE_RUNNER", "ROLE_WORKER", "ROLE_INTEGRATION", "ROLE_ADMIN", ...(me.role === "ROLE_INSTALLATION_ADMIN" ? ["ROLE_INSTALLATION_ADMIN"] : [])];
  if (secret) {
    return (
      <Dialog title="The secret of the key" close={close}>
        <p>It is shown only now. Whoever has it may do what the key may.</p>
        <pre class="code secret" tabIndex={0}>{secret}</pre>
        <footer><button type="button" onClick={() => void navigator.clipboard?.writeText(secret)}>Copy</button><button type="button" class="primary" onClick={close}>Done</button></footer>
      </Dialog>
    );
  }
  return (
    <Dialog title="New key" close={close}>
      <form onSubmit={(e) => {
        e.preventDefault();
        void run(async () => setSecret((await mutate<{ secret: string }>("POST", "keys", { name: name.trim(), role, namespace: namespace.trim() })).secret));
      }}>
        <Field label="Name" hint="Who acts with it, as events show."><input value={name} onInput={(e) => setName(e.currentTarget.value)} required autoFocus /></Field>
        <Field label="Role"><select value={role} onChange={(e) => setRole(e.currentTarget.value)}>{roles.map((r) => <option key={r} value={r}>{words(r, "ROLE_")}</option>)}</select></Field>
        <Field label="Namespace"><input value={namespace} onInput={(e) => setNamespace(e.currentTarget.value)} required /></Field>
        <ErrorNote error={error} />
        <footer><button type="button" onClick={close}>Back</button><button type="submit" class="primary" disabled={busy || !name.trim()}>Create</button></footer>
      </form>
    </Dialog>
  );
}

function Workers() {
  const w = useRead<{ workers?: BoardWorker[] }>((s) => get("board-workers", s), []);
  return (
    <Section title="Workers of boards" aside={<button type="button" onClick={w.again}>Read again</button>}>
      <ErrorNote error={w.error} />
      {w.data?.workers?.length ? (
        <table>
          <thead><tr><th scope="col">worker</th><th scope="col">pools</th><th scope="col" class="n">runs</th><th scope="col">connected</th></tr></thead>
          <tbody>{w.data.workers.map((x) => <tr key={x.workerId}><td class="mono">{x.workerId}</td><td>{x.workerPoolIds?.join(", ")}</td><td class="n">{x.runIds?.length ?? 0} of {x.capacity}</td><td><Age time={x.connectedAt} /></td></tr>)}</tbody>
        </table>
      ) : w.loading ? <Loading /> : <Empty>No worker of boards is connected.</Empty>}
    </Section>
  );
}
