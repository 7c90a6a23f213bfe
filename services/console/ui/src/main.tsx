import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, begin, get, whenSignedOut } from "./api";
import { Login } from "./login";
import { Shell } from "./shell";
import { Me } from "./session";
import type { WhoAmI } from "./types";
import { ErrorNote } from "./ui";

/** takeCode returns the one-time code of the address, and removes it from there and from the history. */
function takeCode(): string {
  const m = /^#code=([\w.-]+)$/.exec(location.hash);
  if (location.hash.startsWith("#code=")) history.replaceState(null, "", location.pathname + "#/");
  return m?.[1] ?? "";
}

/** taken is the code that the page was opened with, and then each that comes into its address. */
const taken = { code: takeCode(), came: () => {} };

// This listens before any view does, none of which sees the code.
addEventListener("hashchange", () => {
  const code = takeCode();
  if (!code) return;
  taken.code = code;
  taken.came();
});

function App() {
  const [me, setMe] = useState<WhoAmI>();
  const [error, setError] = useState<ApiError>();
  const [out, setOut] = useState(false);
  const enter = () => {
    setError(undefined);
    get<WhoAmI>("whoami").then(
      (w) => {
        setMe(w);
        setOut(false);
      },
      (e: ApiError) => {
        if (e.status === 401) setOut(true);
        else {
          setError(e);
          if (e.status === 0 || e.status === 503) setTimeout(enter, 1500);
        }
      },
    );
  };
  const enterWith = (code: string) => begin({ code }).then(enter, (e: ApiError) => {
    setError(e);
    // A session of before is still one.
    get<WhoAmI>("whoami").then(setMe, () => setOut(true));
  });
  useEffect(() => {
    taken.came = () => void enterWith(taken.code);
    whenSignedOut(() => {
      setMe(undefined);
      setOut(true);
    });
    if (taken.code) void enterWith(taken.code);
    else enter();
  }, []);
  if (me) return <Me.Provider value={me}><Shell /></Me.Provider>;
  if (out) return <Login done={enter} note={<ErrorNote error={error} />} />;
  return <main class="login">{error ? <ErrorNote error={error} again={enter} /> : <p role="status">Loading…</p>}</main>;
}

render(<App />, document.getElementById("app")!);
