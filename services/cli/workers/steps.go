package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/proctree"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
)

const (
	// summaryBytes is the most that is kept of a handler's stdout: a step's summary
	// and reason have at most 16 KiB.
	summaryBytes = 16 << 10
	// handlerGrace is the time between SIGTERM and SIGKILL.
	handlerGrace = 5 * time.Second
	// maxPendingLines is how many progress lines may wait to be printed; further
	// ones are dropped, so that a blocked terminal stops no step.
	maxPendingLines = 100
)

// executeSteps runs the handler for steps of boards until the command's context
// ends, and prints on stderr when each step starts and ends.
func executeSteps(cmd *cobra.Command, conn *grpc.ClientConn, f flags) error {
	o := f.steps
	host, err := proctree.Open(cmd.Context(), proctree.Config{Owner: "steps of " + o.ID, Boot: id.New().New("boot_"), Guard: f.commands.Guard})
	if err != nil {
		return err
	}
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
		ended <- client.New(conn).RunSteps(cmd.Context(), o, func(ctx context.Context, a *boardv1.StepAssignment) (client.StepResult, error) {
			step := a.GetRun().GetSessionId() + "/" + a.GetRun().GetBoardId() + " " + a.GetStep().GetStepId()
			report("%s started", step)
			started := time.Now()
			result, err := runHandler(ctx, host, f.handler, a)
			took := time.Since(started).Round(time.Millisecond)
			if err != nil {
				report("%s failed after %s: %v", step, took, err)
			} else {
				report("%s %s after %s", step, statusOrCompleted(result.Status), took)
			}
			return result, err
		})
	}()
	p.Printf("%s serves %s with up to %d steps at once\n", o.ID, strings.Join(o.Pools, ", "), o.Capacity)
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

// runHandler runs the handler's shell command for one step and returns its result.
// An error fails the step. When ctx ends, the handler and all its processes are
// ended and the error is the cause of ctx.
func runHandler(ctx context.Context, host *proctree.Host, command string, a *boardv1.StepAssignment) (client.StepResult, error) {
	in, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(a)
	if err != nil {
		return client.StepResult{}, err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Stdin = bytes.NewReader(append(in, '\n'))
	out, errs := &tail{limit: summaryBytes}, &tail{limit: summaryBytes / 4}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.Env = append(withoutQuartetVariables(os.Environ()),
		"QUARTET_SESSION_ID="+a.GetRun().GetSessionId(), "QUARTET_BOARD_ID="+a.GetRun().GetBoardId(),
		"QUARTET_STEP_ID="+a.GetStep().GetStepId(), "QUARTET_RUN_ID="+a.GetRun().GetRunId(),
		"QUARTET_STEP_TITLE="+a.GetStep().GetTitle(), "QUARTET_STEP_SUMMARY="+a.GetStep().GetSummary())
	cmd.SysProcAttr = proctree.GroupAttr()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = handlerGrace
	mark, err := host.Start(cmd, nil)
	if err == nil {
		err = cmd.Wait()
		// End the processes that the handler left behind.
		if _, endErr := host.End(context.WithoutCancel(ctx), mark, 0); endErr != nil {
			err = errors.Join(err, endErr)
		}
	}
	result := parseResult(out.String())
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return result, context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay): // the handler ended well, but a process of it kept the pipes open
		return result, nil
	case errors.As(err, &failed):
		reason := failed.Error()
		if text := strings.TrimSpace(errs.String()); text != "" {
			reason += ": " + text
		}
		return result, errors.New(reason)
	}
	return result, err
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
// is not part of the summary.
func parseResult(text string) client.StepResult {
	text = strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
	last := text[strings.LastIndexByte(text, '\n')+1:]
	var fields struct {
		Summary   *string  `json:"summary"`
		Artifacts []string `json:"artifacts"`
		Status    string   `json:"status"`
		Reason    string   `json:"reason"`
	}
	dec := json.NewDecoder(strings.NewReader(last))
	dec.DisallowUnknownFields()
	if !strings.HasPrefix(last, "{") || dec.Decode(&fields) != nil {
		return client.StepResult{Summary: text}
	}
	result := client.StepResult{Summary: strings.TrimSpace(strings.TrimSuffix(text, last)), ArtifactIDs: fields.Artifacts, Reason: fields.Reason}
	if fields.Summary != nil {
		result.Summary = *fields.Summary
	}
	if status, err := input.Enum[boardv1.StepStatus]("status", fields.Status); err == nil {
		result.Status = status
	}
	return result
}

// tail is a writer that keeps the last limit bytes.
type tail struct {
	limit int
	kept  []byte
}

var _ io.Writer = (*tail)(nil)

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

// String returns what was kept.
func (t *tail) String() string { return string(t.kept) }
