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
	"runtime"
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
	"quartet/pkg/proctree"
)

// Bounds of what a handler may say: a step's summary and reason have 16 KiB.
const (
	summaryBytes = 16 << 10
	handlerGrace = 5 * time.Second
)

// WorkerOptions say how commands are executed.
type WorkerOptions struct {
	// ID is the worker's lasting name.
	ID string
	// Roots are the directories that commands may run in, the first by default.
	Roots []string
	// StateDir tells workers of one host apart; empty: the system's temporary one.
	StateDir string
	Pools    []string
	Labels   map[string]string
	// Capacity is how many commands run at once.
	Capacity int
	// MaxMemory in bytes and MaxProcesses bound every command; 0: not at all.
	MaxMemory    int64
	MaxProcesses int
	// Guard is what Servers.Guard is.
	Guard []string
	// Said shows a line to people.
	Said func(line string)
}

// workerFlags are those of quartet worker.
type workerFlags struct {
	steps    client.StepOptions
	commands WorkerOptions
	handler  string
	capacity int
	memory   int64 // MiB
}

func (ss *session) workerCommand() *cobra.Command {
	var o workerFlags
	cmd := &cobra.Command{
		Use: "worker (--root DIR... | --pool POOL... --handler COMMAND)", Short: "Execute commands, or steps of boards", Args: none,
		Long: `Execute what the server hands out, until ^C. With --root: commands of agents (quartet
task exec) in these directories and below, those of the pool "default" unless --pool
names others. A command may ask for labels that its worker must have. With --handler:
steps of boards.

For each step that the boards dispatch to a pool, COMMAND is run (by sh -c). The step
comes as JSON on stdin:

  {"run": …, "step": {"step_id": …, "title": …, "summary": …}, "dependencies": [{"step_id": …, "result_summary": …}]}

and its parts as $QUARTET_SESSION_ID, $QUARTET_BOARD_ID, $QUARTET_RUN_ID,
$QUARTET_STEP_ID, $QUARTET_STEP_TITLE and $QUARTET_STEP_SUMMARY.

Exit code 0 completes the step; its stdout is the result, the newest 16 KiB of it.
Another exit code fails it, with the end of stderr as the reason. A last line of
stdout that is a JSON object may say more:

  {"summary": "12 packages", "artifacts": ["report.html"], "status": "blocked", "reason": "needs a key"}

What is stopped gets SIGTERM, and SIGKILL 5 s later, with all that it started. Nothing
of it outlives this worker, also when that is killed.`,
		Example: `  quartet worker --root ~/src --label os=linux --capacity 8
  quartet worker --root /srv/gpu --pool gpu --max-memory-mib 8192
  quartet worker --pool go --handler ./run-step --capacity 4
  quartet worker --pool go,slow --handler 'go test "$QUARTET_STEP_TITLE"'`,
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&o.commands.Roots, "root", nil, "Execute commands in this directory and below; may be repeated")
	fl.StringVar(&o.handler, "handler", "", "Execute steps of boards: what to run for each")
	fl.StringSliceVar(&o.steps.Pools, "pool", nil, "The pool to join (required with --handler); may be repeated")
	fl.IntVar(&o.capacity, "capacity", 0, "How many at once (default 4 commands, 1 step)")
	fl.StringVar(&o.steps.ID, "id", "", "The worker's lasting name (default: the host's name and a random end)")
	fl.StringToStringVar(&o.steps.Labels, "label", nil, "A label, as in os=linux; may be repeated")
	fl.StringVar(&o.commands.StateDir, "state-dir", "", "Where the lock of this worker lies (default: the system's temporary directory)")
	fl.Int64Var(&o.memory, "max-memory-mib", 0, "The most memory of any command, in MiB; 0: no limit")
	fl.IntVar(&o.commands.MaxProcesses, "max-processes", 0, "The most processes of any command; 0: no limit")
	cmd.RunE = ss.waits(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		if !cmd.Flags().Changed("capacity") {
			o.capacity = 1
			if len(o.commands.Roots) > 0 {
				o.capacity = 4
			}
		}
		if err := o.check(); err != nil {
			return err
		}
		if o.steps.ID == "" {
			o.steps.ID = workerName()
		}
		o.steps.Capacity = o.capacity
		if len(o.commands.Roots) > 0 {
			return ss.executes(cmd, conn, o)
		}
		return ss.serveSteps(cmd, conn, o)
	})
	return cmd
}

func (o *workerFlags) check() error {
	steps := strings.TrimSpace(o.handler) != ""
	switch {
	case steps && len(o.commands.Roots) > 0:
		return usage("give --root for commands or --handler for steps; a process serves one of both")
	case !steps && len(o.commands.Roots) == 0 && len(o.steps.Pools) == 0:
		return usage("give --root DIR to execute commands, or --pool and --handler to execute steps of boards")
	case !steps && len(o.commands.Roots) == 0:
		return usage("--handler is missing; or --root DIR, to execute the commands of that pool")
	case steps && len(o.steps.Pools) == 0:
		return usage("--pool is missing")
	case steps && (o.memory != 0 || o.commands.MaxProcesses != 0):
		return usage("--max-memory-mib and --max-processes are for commands, with --root")
	case o.capacity < 1 || o.capacity > 10_000:
		return usage(fmt.Sprintf("--capacity %d: must be 1 to 10000", o.capacity))
	case o.memory < 0 || o.memory > 1<<24:
		return usage(fmt.Sprintf("--max-memory-mib %d: must be 1 to %d, or 0 for no limit", o.memory, 1<<24))
	case o.commands.MaxProcesses < 0:
		return usage(fmt.Sprintf("--max-processes %d: must be at least 1, or 0 for no limit", o.commands.MaxProcesses))
	}
	return nil
}

// executes runs commands.
func (ss *session) executes(cmd *cobra.Command, conn *grpc.ClientConn, o workerFlags) error {
	if ss.worker == nil {
		return errors.New("this binary has no worker")
	}
	p := newPrinter(cmd.ErrOrStderr())
	c := o.commands
	c.ID, c.Pools, c.Labels, c.Capacity = o.steps.ID, o.steps.Pools, o.steps.Labels, o.capacity
	c.MaxMemory, c.Guard = o.memory<<20, ss.guard
	c.Said = func(line string) { p.printf("%s\n", printable(line)) }
	return ss.worker(cmd.Context(), conn, c)
}

// serveSteps runs steps of boards.
func (ss *session) serveSteps(cmd *cobra.Command, conn *grpc.ClientConn, f workerFlags) error {
	o := f.steps
	host, err := proctree.Open(cmd.Context(), proctree.Config{Owner: "steps of " + o.ID, Boot: id.New().New("boot_"), Guard: ss.guard})
	if err != nil {
		return err
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
			got, err := handle(ctx, host, f.handler, a)
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
			return errors.Join(err, host.Close(context.WithoutCancel(cmd.Context())))
		}
	}
}

// guardVerb starts a guard; nobody types it.
const guardVerb = "guard-processes"

// GuardCommand is how the binary of this process is started as a guard.
func GuardCommand() []string {
	if runtime.GOOS == "linux" {
		return []string{"/proc/self/exe", guardVerb} // also after the file was replaced by a newer one
	}
	exe, err := os.Executable()
	if err != nil {
		return nil // no guard
	}
	return []string{exe, guardVerb}
}

// guardCommand waits for the end of its worker and ends what that has left.
func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use: guardVerb + " MARK", Hidden: true, Args: exactly("MARK"), Short: "End what a worker leaves that is killed",
		Example: "  quartet " + guardVerb + " 1202763838112399360    # by a worker, with a pipe as stdin",
		RunE: func(cmd *cobra.Command, args []string) error {
			return proctree.Guard(context.WithoutCancel(cmd.Context()), cmd.InOrStdin(), args[0])
		},
	}
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
func handle(ctx context.Context, host *proctree.Host, command string, a *boardv1.StepAssignment) (client.StepResult, error) {
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
	cmd.SysProcAttr = proctree.GroupAttr()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = handlerGrace
	mark, err := host.Start(cmd, nil)
	if err == nil {
		err = cmd.Wait()
		if _, left := host.End(context.WithoutCancel(ctx), mark, 0); left != nil { // whatever it left behind
			err = errors.Join(err, left)
		}
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
