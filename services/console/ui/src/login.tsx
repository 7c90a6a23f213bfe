import { useState } from "preact/hooks";
import { begin } from "./api";
import { ErrorNote, Field, useAct } from "./ui";

/** Login asks for a key. A one-time code was tried before, and its error is shown. */
export function Login({ done, note }: { done: () => void; note?: preact.ComponentChildren }) {
  const [key, setKey] = useState("");
  const { busy, error, run } = useAct(done);
  return (
    <main class="login">
      <form onSubmit={(e) => { e.preventDefault(); void run(() => begin({ key: key.trim() })).then(() => setKey("")); }}>
        <h1><Mark /> Quartet</h1>
        {note}
        <Field label="Key" hint="An API key, or a token of your identity provider. It is kept encrypted in a cookie that scripts cannot read.">
          <input type="password" autoComplete="off" spellcheck={false} value={key} onInput={(e) => setKey(e.currentTarget.value)} autoFocus required />
        </Field>
        <ErrorNote error={error} />
        <button type="submit" class="primary" disabled={busy || !key.trim()}>Sign in</button>
        <p class="dim">On the machine that runs <code>quartet dev</code>, <code>quartet console</code> signs you in without one.</p>
      </form>
    </main>
  );
}

/** Mark is the sign of Quartet: four voices. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <rect x="1" y="6" width="2.6" height="8" rx="1" />
      <rect x="4.9" y="2" width="2.6" height="12" rx="1" />
      <rect x="8.8" y="8" width="2.6" height="6" rx="1" />
      <rect x="12.7" y="4" width="2.6" height="10" rx="1" />
    </svg>
  );
}
