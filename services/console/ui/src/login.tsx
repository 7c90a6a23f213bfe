import { useEffect, useState } from "preact/hooks";
import { begin, issuer, signInWith } from "./api";
import { ErrorNote, Field, useAct } from "./ui";

/** hostOf returns the host and path of a provider's address, by which people know it. */
const hostOf = (address: string) => address.replace(/^https?:\/\//, "").replace(/\/$/, "");

/** Login asks for a key, and offers the sign-in with an identity provider if there is one. A one-time code was tried before, and its error is shown. */
export function Login({ done, note }: { done: () => void; note?: preact.ComponentChildren }) {
  const [key, setKey] = useState("");
  const { busy, error, run } = useAct(done);
  const [provider, setProvider] = useState("");
  // Without an answer one signs in with a key; whoami has said before that the server answers.
  useEffect(() => void issuer().then(setProvider, () => {}), []);
  return (
    <main class="login">
      <form onSubmit={(e) => { e.preventDefault(); void run(() => begin({ key: key.trim() })).then(() => setKey("")); }}>
        <h1><Mark /> Quartet</h1>
        {note}
        {provider && <a class="button" href={signInWith()}>Sign in with {hostOf(provider)}</a>}
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
