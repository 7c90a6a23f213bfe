package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"quartet/pkg/localtoken"
	"quartet/pkg/must"
	"quartet/tests/proc"
)

// patience is how long a condition in a page may take to come true.
const patience = time.Minute

// shared is what all tests of this process use: the binary and one browser.
var shared struct {
	once    sync.Once
	err     error
	dir     string
	binary  string
	browser context.Context //nolint:containedctx // lives as long as the process
	stop    func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.stop != nil {
		shared.stop()
	}
	_ = os.RemoveAll(shared.dir)
	os.Exit(code)
}

// chromium returns the path of the browser.
func chromium() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("this test needs Chromium, which is not installed here; make browser installs it")
}

// start builds the binary and starts the browser.
func start() error {
	path, err := chromium()
	if err != nil {
		return err
	}
	if shared.dir, err = os.MkdirTemp("", "quartet-console-"); err != nil {
		return err
	}
	if shared.binary, err = proc.Build(shared.dir, "quartet/cmd/quartet", "quartet"); err != nil {
		return err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.DisableGPU,
		chromedp.UserDataDir(filepath.Join(shared.dir, "profile")), chromedp.WindowSize(1280, 900),
		chromedp.WSURLReadTimeout(time.Minute),
		chromedp.Flag("disable-dev-shm-usage", true))
	allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	browser, stopBrowser := chromedp.NewContext(allocator)
	shared.stop = func() {
		stopBrowser()
		stopAllocator()
	}
	shared.browser = browser //nolint:fatcontext // nothing is nested: it is assigned once
	return chromedp.Do(browser)
}

// rig is a server of `quartet dev` and the state of its user.
type rig struct {
	*testing.T
	srv   *proc.Quartet
	base  string
	token string
}

// newRig starts a server with further settings.
func newRig(t *testing.T, settings ...string) *rig {
	proc.Long(t)
	shared.once.Do(func() { shared.err = start() })
	require.NoError(t, shared.err)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	srv := must.Value(proc.NewQuartet(shared.binary, filepath.Join(t.TempDir(), "data"), "", settings...))(t)
	r := &rig{T: t, srv: srv, base: "http://" + srv.HTTP}
	r.start()
	t.Cleanup(func() { _ = srv.Kill() })
	return r
}

// start starts the server, or starts it again.
func (r *rig) start() {
	r.Helper()
	require.NoError(r, r.srv.Start(r.soon()))
	r.token = must.Value(localtoken.Read(r.srv.HTTP))(r)
}

// soon returns a context that ends after a minute.
func (r *rig) soon() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	r.Cleanup(cancel)
	return ctx
}

// call makes a call of the REST API as the user of the server, and returns its answer.
func (r *rig) call(method, path string, body any) map[string]any {
	r.Helper()
	status, answer := r.callAs(r.token, method, path, body)
	require.Equal(r, http.StatusOK, status, "%s %s: %v", method, path, answer)
	return answer
}

// callAs makes a call with a credential, and returns status and answer.
func (r *rig) callAs(token, method, path string, body any) (int, map[string]any) {
	r.Helper()
	var in io.Reader
	if body != nil {
		in = bytes.NewReader(must.Value(json.Marshal(body))(r))
	}
	req := must.Value(http.NewRequestWithContext(r.soon(), method, r.base+path, in))(r)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp := must.Value(http.DefaultClient.Do(req))(r)
	raw, err := io.ReadAll(resp.Body)
	require.NoError(r, errors.Join(err, resp.Body.Close()))
	var answer map[string]any
	if len(bytes.TrimSpace(raw)) > 0 && strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		require.NoError(r, json.Unmarshal(raw, &answer), string(raw))
	}
	return resp.StatusCode, answer
}

// quartet runs the command line and returns what it printed.
func (r *rig) quartet(args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.soon(), shared.binary, append(args, "--address", r.srv.GRPC)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(r, cmd.Run(), errs.String())
	return strings.TrimSpace(out.String())
}

// tab is a tab of the browser.
type tab struct {
	*rig
	ctx context.Context //nolint:containedctx // is how chromedp names a tab

	mu       sync.Mutex
	problems []string // errors of scripts, and what the policy of the page forbade
}

// open opens a tab at an address, with no cookies of before.
func (r *rig) open(url string) *tab {
	r.Helper()
	t := &tab{rig: r}
	ctx, cancel := chromedp.NewContext(shared.browser, chromedp.WithNewBrowserContext(),
		chromedp.WithListener(t.listen))
	r.Cleanup(cancel)
	t.ctx = ctx
	require.NoError(r, chromedp.Do(ctx, chromedp.Navigate(url)))
	return t
}

// listen notes what goes wrong in the page.
func (t *tab) listen(ev any) {
	problem := ""
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		problem = e.ExceptionDetails.Text + " " + e.ExceptionDetails.URL
		if x := e.ExceptionDetails.Exception; x != nil {
			problem += " " + x.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			for _, arg := range e.Args {
				problem += string(arg.Value) + arg.Description + " "
			}
		}
	case *page.EventJavascriptDialogOpening:
		problem = "a dialog of a script: " + e.Message
	}
	if problem != "" {
		t.mu.Lock()
		t.problems = append(t.problems, problem)
		t.mu.Unlock()
	}
}

// sound demands that no script failed.
func (t *tab) sound() {
	t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	require.Empty(t, t.problems)
}

// signedIn opens the console by the command line, signed in.
func (r *rig) signedIn() *tab {
	r.Helper()
	t := r.open(r.quartet("console", "--print"))
	t.sees("Fleet")
	return t
}

// as opens the console signed in with a key.
func (r *rig) as(key string) *tab {
	r.Helper()
	t := r.open(r.base + "/ui/")
	t.fill("Key", key)
	t.press("Sign in")
	t.until("the console", `!!document.querySelector(".shell")`)
	return t
}

// js evaluates an expression in the page.
func js[T any](t *tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(t.ctx, time.Minute)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// do evaluates an expression for what it does.
func (t *tab) do(expression string) {
	t.Helper()
	must.Value(js[chromedp.Void](t, expression))(t, expression)
}

// value returns the value of an expression.
func value[T any](t *tab, expression string) T {
	t.Helper()
	v := must.Value(js[T](t, expression))(t, expression)
	return v
}

// until waits until an expression is true.
func (t *tab) until(what, expression string) {
	t.Helper()
	var last error
	if !eventually(func() bool {
		ok, err := js[bool](t, "!!("+expression+")")
		last = err
		return err == nil && ok
	}) {
		text, _ := js[string](t, "document.body.innerText")
		t.shot("failed-" + strings.ReplaceAll(t.Name(), "/", "-"))
		require.Failf(t, "the page does not show "+what, "%s (%v)\n%s\n%v", expression, last, text, t.problems)
	}
}

// eventually reports whether a condition comes true in time.
func eventually(condition func() bool) bool {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	every := time.NewTicker(40 * time.Millisecond)
	defer every.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			return condition()
		case <-every.C:
		}
	}
	return true
}

// quoted returns a text as an expression.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil { // a string always marshals
		return `""`
	}
	return string(b)
}

// sees waits until the page shows a text.
func (t *tab) sees(text string) {
	t.Helper()
	t.until(text, "document.body.innerText.includes("+quoted(text)+")")
}

// misses waits until the page does not show a text any more.
func (t *tab) misses(text string) {
	t.Helper()
	t.until("no more "+text, "!document.body.innerText.includes("+quoted(text)+")")
}

// named is an expression for the visible, enabled element with a role of selector and a name: of the open
// dialog, if there is one.
func named(selector, name string) string {
	return fmt.Sprintf(
		`[...(document.querySelector("dialog[open]") ?? document).querySelectorAll(%s)].find((e) => !e.disabled && e.getClientRects().length && (e.getAttribute("aria-label") === %[2]s || e.innerText.trim() === %[2]s || e.innerText.trim().startsWith(%[2]s + " ") || e.innerText.trim().startsWith(%[2]s + "\n")))`, quoted(selector), quoted(name))
}

// press clicks a button, tab or link by its name.
func (t *tab) press(name string) {
	t.Helper()
	at := named(`button, a, [role="tab"], summary, [role="button"]`, name)
	t.until("a button "+name, at)
	t.do(at + ".click()")
}

// confirm clicks a button of the dialog that opens, which then closes.
func (t *tab) confirm(name string) {
	t.Helper()
	t.until("a dialog", `document.querySelector("dialog[open]")`)
	t.press(name)
	t.until("no dialog", `!document.querySelector("dialog[open]")`)
}

// fill enters a text into a field by its label.
func (t *tab) fill(label, text string) {
	t.Helper()
	at := fmt.Sprintf(
		`[...(document.querySelector("dialog[open]") ?? document).querySelectorAll("input, textarea, select")].find((e) => (e.getAttribute("aria-label") ?? e.closest("label")?.querySelector("span")?.innerText ?? "").trim().startsWith(%s))`, quoted(label))
	t.until("a field "+label, at)
	t.do(fmt.Sprintf(`(() => {
		const e = %s;
		e.focus();
		Object.getOwnPropertyDescriptor(Object.getPrototypeOf(e), "value").set.call(e, %s);
		e.dispatchEvent(new Event(e.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
	})()`, at, quoted(text)))
}

// view shows a view of the console.
func (t *tab) view(path string) {
	t.Helper()
	t.do("void (location.hash = " + quoted("#/"+path) + ")")
}

// shot writes a picture of the page to $CONSOLE_SHOTS, if that is set.
func (t *tab) shot(name string) {
	t.Helper()
	dir := os.Getenv("CONSOLE_SHOTS")
	if dir == "" {
		return
	}
	png := must.Value(chromedp.Run(t.ctx, chromedp.CaptureScreenshot()))(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600))
}
