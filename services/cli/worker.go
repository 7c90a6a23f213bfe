package cli

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
)

// Bounds of what a handler may say: a step's summary and reason have 16 KiB.
const (
	summaryBytes = 16 << 10
	handlerGrace = 5 * time.Second
)

func (ss *session) workerCommand() *cobra.Command {
	var o client.StepOptions
	var handler string
	cmd := &cobra.Command{
		Use: "worker --pool POOL --handler COMMAND", Short: "Work steps of boards with a command", Args: none,
		Long: `Join a pool, take the steps that its boards dispatch, and run COMMAND (by sh -c) for
each, until ^C. The step comes as JSON on stdin:

  {"run": …, "step": {"step_id": …, "title": …, "summary": …}, "dependencies": [{"step_id": …, "result_summary": …}]}

and its parts as $QUARTET_SESSION_ID, $QUARTET_BOARD_ID, $QUARTET_RUN_ID,
$QUARTET_STEP_ID, $QUARTET_STEP_TITLE and $QUARTET_STEP_SUMMARY.

Exit code 0 completes the step; its stdout is the result, the newest 16 KiB of it.
Another exit code fails it, with the end of stderr as the reason. A last line of
stdout that is a JSON object may say more:

  {"summary": "12 packages", "artifacts": ["report.html"], "status": "blocked", "reason": "needs a key"}

A step that is cancelled gets SIGTERM, and SIGKILL 5 s later, with all that it
started. The worker's own commands (quartet task exec) are run by "quartet serve
worker".`,
		Example: `  quartet worker --pool go --handler ./run-step --capacity 4
  quartet worker --pool go,slow --handler 'go test "$QUARTET_STEP_TITLE"'`,
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&o.Pools, "pool", nil, "The pool to join (required); may be repeated")
	fl.StringVar(&handler, "handler", "", "What to run for each step (required)")
	fl.IntVar(&o.Capacity, "capacity", 1, "How many steps at once")
	fl.StringVar(&o.ID, "id", "", "The worker's lasting name (default: the host's name and a random end)")
	fl.StringToStringVar(&o.Labels, "label", nil, "A label, as in os=linux; may be repeated")
	cmd.RunE = ss.waits(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		switch {
		case len(o.Pools) == 0:
			return usage("--pool is missing")
		case strings.TrimSpace(handler) == "":
			return usage("--handler is missing")
		case o.Capacity < 1 || o.Capacity > 10_000:
			return usage(fmt.Sprintf("--capacity %d: must be 1 to 10000", o.Capacity))
		}
		if o.ID == "" {
			o.ID = workerName()
		}
		p := newPrinter(cmd.ErrOrStderr())
		said := make(chan string, 100) // one writer; what does not fit is not said
		say := func(format string, args ...any) {
			select {
			case said <- fmt.Sprintf(format, args...):
			default:
			}
		}
		o.Troubled = func(err error) { say("%s", fault.From(err).Message()) }
		ended := make(chan error, 1)
		go func() {
			ended <- client.New(conn).RunSteps(cmd.Context(), o, func(ctx context.Context, a *boardv1.StepAssignment) (client.StepResult, error) {
				step := a.GetRun().GetSessionId() + "/" + a.GetRun().GetBoardId() + " " + a.GetStep().GetStepId()
				say("%s begins", step)
				began := time.Now()
				got, err := handle(ctx, handler, a)
				switch {
				case err != nil:
					say("%s failed after %s: %v", step, time.Since(began).Round(time.Millisecond), err)
				default:
					say("%s %s after %s", step, orCompleted(got.Status), time.Since(began).Round(time.Millisecond))
				}
				return got, err
			})
		}()
		p.printf("%s serves %s with up to %d steps at once\n", o.ID, strings.Join(o.Pools, ", "), o.Capacity)
		for {
			select {
			case line := <-said:
				p.printf("%s\n", printable(brief(line, 4*p.columns())))
			case err := <-ended:
				return err
			}
		}
	})
	return cmd
}

func orCompleted(s boardv1.StepStatus) string {
	if s == boardv1.StepStatus_STEP_STATUS_UNSPECIFIED {
		return "completed"
	}
	return short(s)
}

// workerName is the host's name as far as it is one, and a random end: two
// workers of a host must not share a name.
func workerName() string {
	host, _ := os.Hostname()
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, strings.ToLower(host))
	random := id.New().New("w_")
	return strings.Trim("worker-"+host, "-") + "-" + random[len(random)-8:]
}

// handle runs the handler's command for one step.
func handle(ctx context.Context, command string, a *boardv1.StepAssignment) (client.StepResult, error) {
	in, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(a)
	if err != nil {
		return client.StepResult{}, err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Stdin = bytes.NewReader(append(in, '\n'))
	out, errs := &tail{most: summaryBytes}, &tail{most: summaryBytes / 4}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.Env = append(withoutSecrets(os.Environ()),
		"QUARTET_SESSION_ID="+a.GetRun().GetSessionId(), "QUARTET_BOARD_ID="+a.GetRun().GetBoardId(),
		"QUARTET_STEP_ID="+a.GetStep().GetStepId(), "QUARTET_RUN_ID="+a.GetRun().GetRunId(),
		"QUARTET_STEP_TITLE="+a.GetStep().GetTitle(), "QUARTET_STEP_SUMMARY="+a.GetStep().GetSummary())
	cmd.SysProcAttr = ownGroup()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = handlerGrace
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // whatever it left behind
	}
	got := resultOf(out.String())
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return got, context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay): // something it started kept the pipes open
		return got, nil
	case errors.As(err, &exit):
		reason := exit.Error()
		if text := strings.TrimSpace(errs.String()); text != "" {
			reason += ": " + text
		}
		return got, errors.New(reason)
	}
	return got, err
}

// withoutSecrets leaves the worker's own credential out of a handler's environment.
func withoutSecrets(env []string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "QUARTET_") {
			out = append(out, kv)
		}
	}
	return out
}

// resultOf reads what a handler printed: text, or text that ends with a line of
// JSON that says more.
func resultOf(text string) client.StepResult {
	text = strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
	last := text[strings.LastIndexByte(text, '\n')+1:]
	var more struct {
		Summary   *string  `json:"summary"`
		Artifacts []string `json:"artifacts"`
		Status    string   `json:"status"`
		Reason    string   `json:"reason"`
	}
	dec := json.NewDecoder(strings.NewReader(last))
	dec.DisallowUnknownFields()
	if !strings.HasPrefix(last, "{") || dec.Decode(&more) != nil {
		return client.StepResult{Summary: text}
	}
	got := client.StepResult{Summary: strings.TrimSpace(strings.TrimSuffix(text, last)), ArtifactIDs: more.Artifacts, Reason: more.Reason}
	if more.Summary != nil {
		got.Summary = *more.Summary
	}
	if status, err := enum[boardv1.StepStatus]("status", more.Status); err == nil {
		got.Status = status
	}
	return got
}

// tail keeps the newest bytes of what is written.
type tail struct {
	most int
	kept []byte
}

var _ io.Writer = (*tail)(nil)

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - t.most; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string { return string(t.kept) }
