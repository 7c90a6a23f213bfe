//go:build unix

package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"quartet/pkg/client"
	"quartet/pkg/confine"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/proctree"
	"quartet/pkg/sandboxes"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
)

const (
	// summaryBytes is the most that is reported of a handler's stdout: a step's summary
	// and reason have at most 16 KiB.
	summaryBytes = fault.MaxFreeTextBytes
	// outputBytes is the most that is kept of a handler's stdout: its last line may be a
	// JSON object with a summary, a reason and artifacts.
	outputBytes = 128 << 10
	// handlerGrace is the time between SIGTERM and SIGKILL.
	handlerGrace = 5 * time.Second
	// maxPendingLines is how many progress lines may wait to be printed; further
	// ones are dropped, so that a blocked terminal stops no step.
	maxPendingLines = 100
)

// guardProcesses runs a guard process: it waits until the worker ends, and ends the processes left behind.
func guardProcesses(cmd *cobra.Command, mark string) error {
	return proctree.Guard(context.WithoutCancel(cmd.Context()), cmd.InOrStdin(), mark)
}

// executeSteps runs the handler for steps of boards until the command's context
// ends, and prints on stderr when each step starts and ends.
func executeSteps(cmd *cobra.Command, conn *grpc.ClientConn, f flags) error {
	o := f.steps
	if err := confine.Protect(); err != nil {
		return fmt.Errorf("protect the memory of this process: %w", err)
	}
	host, err := proctree.Open(cmd.Context(), proctree.Config{
		Owner: "steps of " + o.ID, Boot: id.New().New("boot_"),
		Guard: f.commands.Guard,
	})
	if err != nil {
		return err
	}
	h, err := newHandler(host, f)
	if err != nil {
		return errors.Join(err, host.Close(cmd.Context()))
	}
	defer h.sandboxes.Close()
	p := output.New(cmd.ErrOrStderr())
	lines := make(chan string, maxPendingLines) // steps run concurrently, and a Printer has one writer
	report := func(format string, args ...any) {
		select {
		case lines <- fmt.Sprintf(format, args...):
		default:
		}
	}
	o.Troubled = func(err error) { report("%s", fault.From(err).Message()) }
	ended := make(chan error, 1)
	go func() {
		ended <- client.New(conn).RunSteps(cmd.Context(), o, func(ctx context.Context, a *boardv1.StepAssignment) (
			client.StepResult, error,
		) {
			step := a.GetRun().GetSessionId() + "/" + a.GetRun().GetBoardId() + " " + a.GetStep().GetStepId()
			report("%s started", step)
			started := time.Now()
			result, err := h.run(ctx, a)
			took := time.Since(started).Round(time.Millisecond)
			if err != nil {
				report("%s failed after %s: %v", step, took, err)
			} else {
				report("%s %s after %s", step, statusOrCompleted(result.Status), took)
			}
			return result, err
		})
	}()
	p.Printf("%s serves %s with up to %s at once\n", o.ID, strings.Join(o.Pools, ", "),
		terminal.Count(o.Capacity, "step", "steps"))
	for {
		select {
		case line := <-lines:
			p.Printf("%s\n", terminal.Printable(output.Shorten(line, 4*p.Columns())))
		case err := <-ended:
			return errors.Join(err, host.Close(context.WithoutCancel(cmd.Context())))
		}
	}
}

// statusOrCompleted returns the name of the status that a handler set, or
// "completed" if it set none.
func statusOrCompleted(s boardv1.StepStatus) string {
	if s == boardv1.StepStatus_STEP_STATUS_UNSPECIFIED {
		return "completed"
	}
	return pbjson.EnumText(s)
}

// handler runs the handler's shell command for steps.
type handler struct {
	command   string
	dir       string   // the working directory of this process
	writable  []string // directories that the command may write
	env       []string
	host      *proctree.Host
	sandboxes *sandboxes.Pool
}

// newHandler returns the handler of `quartet worker --handler`, nil with an error. Unless it is unconfined, it writes
// to the working directory and to those of --writable, and its environment has what a shell needs
// and the variables of --env.
func newHandler(host *proctree.Host, f flags) (*handler, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	h := &handler{command: f.handler, dir: dir, host: host}
	o := f.commands
	if o.Unconfined {
		h.env = withoutQuartetVariables(os.Environ())
		h.sandboxes = sandboxes.NewPool(nil, "", nil)
		return h, nil
	}
	for _, path := range f.writable {
		if path, err = filepath.Abs(path); err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			return nil, exit.UsageError("--writable: " + err.Error())
		}
		h.writable = append(h.writable, path)
	}
	if sandboxes.HasHome(dir) && !slices.Contains(h.writable, dir) {
		return nil, exit.UsageError("the working directory " + dir + " is your home or contains it, and a handler " +
			"could change what other programs execute there: start in the directory of a project, or name it with " +
			"--writable")
	}
	h.writable = slices.Insert(slices.DeleteFunc(h.writable, func(path string) bool { return path == dir }), 0, dir)
	for _, name := range append([]string{"PATH", "LANG"}, f.env...) {
		if v, ok := os.LookupEnv(name); ok {
			h.env = append(h.env, name+"="+v)
		}
	}
	state := o.StateDir
	if state == "" {
		state = os.TempDir()
	}
	cfg := &sandboxes.Config{
		Helper: o.Confine, Network: confine.Network(o.Network), Readable: o.Readable,
		Hidden: o.Hidden,
	}
	h.sandboxes = sandboxes.NewPool(cfg, filepath.Join(state, "sandboxes-steps-"+f.steps.ID), host.StartHelper)
	return h, nil
}

// run runs the command for one step, in a sandbox of its own with the home of the step's session, so that it reaches no
// process of another step, and returns its result. When ctx ends, the handler and all its processes are ended and the
// error is the cause of ctx. An error fails the step, unless that cause is client.ErrStopping, which releases the run.
func (h *handler) run(ctx context.Context, a *boardv1.StepAssignment) (client.StepResult, error) {
	in, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(a)
	if err != nil {
		return client.StepResult{}, err
	}
	sandbox, leave, err := h.sandboxes.EnterAlone(a.GetRun().GetSessionId(), h.writable)
	if err != nil {
		return client.StepResult{}, err
	}
	defer leave()
	env := append(slices.Clone(h.env),
		"QUARTET_SESSION_ID="+a.GetRun().GetSessionId(), "QUARTET_BOARD_ID="+a.GetRun().GetBoardId(),
		"QUARTET_STEP_ID="+a.GetStep().GetStepId(), "QUARTET_RUN_ID="+a.GetRun().GetRunId(),
		"QUARTET_STEP_TITLE="+a.GetStep().GetTitle(), "QUARTET_STEP_SUMMARY="+a.GetStep().GetSummary())
	if sandbox != nil {
		env = append(env, "HOME="+confine.Home(sandbox.Dir()), "TMPDIR="+confine.Temp(sandbox.Dir()))
	}
	out, errs := &tail{limit: outputBytes}, &tail{limit: summaryBytes / 4}
	err = sandboxes.Run(ctx, h.host, sandbox, sandboxes.Program{
		Spec:  confine.Spec{Argv: []string{"/bin/sh", "-c", h.command}, Env: env, Dir: h.dir},
		Stdin: bytes.NewReader(append(in, '\n')), Stdout: out, Stderr: errs, Grace: handlerGrace,
	})
	result, badResult := parseResult(out.String())
	var failed *sandboxes.ExitError
	switch {
	case ctx.Err() != nil:
		return result, context.Cause(ctx)
	case errors.As(err, &failed):
		reason := failed.Error()
		if text := validText(errs.String()); text != "" {
			reason += ": " + text
		}
		return result, errors.New(reason)
	case err != nil:
		return result, err
	}
	return result, badResult
}

// withoutQuartetVariables removes QUARTET_… variables from an environment, so that
// a handler does not see the worker's credential.
func withoutQuartetVariables(env []string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "QUARTET_") {
			out = append(out, kv)
		}
	}
	return out
}

// parseResult reads what a handler printed. The text is the summary, unless its
// last line is a JSON object with the known fields: then that line sets them and
// is not part of the summary. An object that has a status but cannot be used is an
// error, since the handler may have said that the step is not completed.
func parseResult(text string) (client.StepResult, error) {
	text = validText(text)
	last := text[strings.LastIndexByte(text, '\n')+1:]
	plain := client.StepResult{Summary: lastBytes(text, summaryBytes)}
	object, is := readObject(last)
	if !is {
		return plain, nil
	}
	var fields struct {
		Summary   *string  `json:"summary"`
		Artifacts []string `json:"artifacts"`
		Status    *string  `json:"status"`
		Reason    string   `json:"reason"`
	}
	dec := json.NewDecoder(strings.NewReader(last))
	dec.DisallowUnknownFields()
	err := dec.Decode(&fields)
	switch {
	case err == nil:
	case !hasStatus(object):
		return plain, nil // JSON of another kind
	default:
		return plain, fmt.Errorf("the handler's result %s cannot be used: %w", output.Shorten(last, maxShownResult),
			err)
	}
	result := client.StepResult{
		Summary:     lastBytes(strings.TrimSpace(strings.TrimSuffix(text, last)), summaryBytes),
		ArtifactIDs: fields.Artifacts, Reason: fields.Reason,
	}
	if fields.Summary != nil {
		result.Summary = *fields.Summary
	}
	if fields.Status == nil {
		return result, nil
	}
	result.Status, err = input.Enum[boardv1.StepStatus]("status", *fields.Status)
	if err != nil || !endsStep(result.Status) {
		result.Status = boardv1.StepStatus_STEP_STATUS_UNSPECIFIED
		return result, fmt.Errorf("the handler set the status %q, which is none of completed, blocked, failed and "+
			"cancelled", output.Shorten(*fields.Status, maxShownResult))
	}
	return result, nil
}

// validText returns s without white space around it, and with U+FFFD in place of NUL and of
// bytes that are not UTF-8, which the server refuses.
func validText(s string) string {
	return strings.TrimSpace(strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD"))
}

// maxShownResult is how much of a result that cannot be used is shown, in columns.
const maxShownResult = 200

// readObject returns the fields of a JSON object; is is false for any other text.
func readObject(text string) (fields map[string]json.RawMessage, is bool) {
	is = strings.HasPrefix(text, "{") && json.Unmarshal([]byte(text), &fields) == nil
	return fields, is
}

// hasStatus reports whether a JSON object has the field status, in any case, as the decoder
// reads it.
func hasStatus(object map[string]json.RawMessage) bool {
	for name := range object {
		if strings.EqualFold(name, "status") {
			return true
		}
	}
	return false
}

// endsStep reports whether a handler may set a status for its step.
func endsStep(s boardv1.StepStatus) bool {
	switch s {
	case boardv1.StepStatus_STEP_STATUS_COMPLETED, boardv1.StepStatus_STEP_STATUS_BLOCKED,
		boardv1.StepStatus_STEP_STATUS_FAILED, boardv1.StepStatus_STEP_STATUS_CANCELLED:
		return true
	default:
		return false
	}
}

// lastBytes returns the end of a valid text, of at most n bytes and without a part of a
// character.
func lastBytes(s string, n int) string {
	if len(s) > n {
		s = s[len(s)-n:]
		for s != "" && !utf8.RuneStart(s[0]) {
			s = s[1:]
		}
	}
	return s
}

// tail is a writer that keeps the last limit bytes. It has up to three times as many in
// memory, so that it seldom moves them.
type tail struct {
	limit int
	kept  []byte
}

var _ io.Writer = (*tail)(nil)

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	n := len(b)
	if over := len(b) - t.limit; over > 0 {
		b = b[over:]
	}
	if len(t.kept)+len(b) > 3*t.limit {
		t.kept = append(t.kept[:0], t.last()...)
	}
	t.kept = append(t.kept, b...)
	return n, nil
}

// last returns the last limit bytes that were written.
func (t *tail) last() []byte { return t.kept[max(0, len(t.kept)-t.limit):] }

// String returns what was kept.
func (t *tail) String() string { return string(t.last()) }
