package workers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/confine"
	"quartet/pkg/id"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// Options are what `quartet worker --root` passes to the worker.
type Options struct {
	// ID is the name that the worker keeps across restarts.
	ID string
	// Roots are the directories in which commands may run; the first is the default.
	Roots []string
	// Isolate says which agents have a directory of their own: none, namespace or agent.
	Isolate string
	// StateDir holds the lock that keeps two workers of one host from using one
	// ID; empty: the system's temporary directory.
	StateDir string
	Pools    []string
	Labels   map[string]string
	// Capacity is how many commands run at once.
	Capacity int
	// MaxMemory in bytes and MaxProcesses limit every command; 0: no limit.
	MaxMemory    int64
	MaxProcesses int
	// Guard is the command line of a guard process; empty: none.
	Guard []string
	// Confine is the command line of the process that confines commands.
	Confine []string
	// Unconfined lets commands do whatever this process may.
	Unconfined bool
	// Network is what commands reach: none, outside or all.
	Network string
	// Readable and Hidden are files and directories that commands may read, and that do not
	// exist for them.
	Readable, Hidden []string
	// Report prints a line for people.
	Report func(line string)
}

// Execute runs commands of agents until ctx ends, as a client of the server behind conn.
type Execute func(ctx context.Context, conn grpc.ClientConnInterface, o Options) error

// flags holds the values of the flags of `quartet worker`.
type flags struct {
	steps    client.StepOptions
	commands Options
	handler  string
	capacity int
	memory   int64    // MiB
	writable []string // directories that the handler may write
	env      []string // names of variables that the handler has
}

// Command returns `quartet worker`. guard is the command line of a guard process, confiner that of
// a process that confines commands.
func Command(s *session.Session, execute Execute, guard, confiner []string) *cobra.Command {
	var o flags
	cmd := &cobra.Command{
		Use: "worker (--root DIR... | --pool POOL... --handler COMMAND)", Short: "Execute commands, or steps of boards",
		Args: input.None,
		Long: `Execute what the server assigns to this worker, until ^C.

With --root: commands of agents (quartet task exec) in these directories and below,
of the pool "default" unless --pool names others. A command may require labels; only
workers with these labels execute it.

With --handler: steps of boards. For each step that a board dispatches to a pool,
COMMAND is run (by sh -c). The step is written to its stdin as JSON:

  {"run": …, "step": {"step_id": …, "title": …, "summary": …}, "dependencies": [{"step_id": …, "result_summary": …}]}

and its parts are in $QUARTET_SESSION_ID, $QUARTET_BOARD_ID, $QUARTET_RUN_ID,
$QUARTET_STEP_ID, $QUARTET_STEP_TITLE and $QUARTET_STEP_SUMMARY.

Exit code 0 completes the step; the last 16 KiB of stdout are its result. Another
exit code fails it, with the end of stderr as the reason. If the last line of stdout
is a JSON object (of at most 128 KiB), it can set more:

  {"summary": "12 packages", "artifacts": ["report.html"], "status": "blocked", "reason": "needs a key"}

The status is completed, blocked, failed or cancelled. An object with another status
fails the step, and so does a result that the server refuses, such as an artifact of
more than 256 characters. What is not UTF-8 is replaced.

A command or handler that is stopped gets SIGTERM, and SIGKILL 5 s later, with all
processes that it started. None of them outlives this worker, even if the worker is
killed; but with --unconfined, one that changes its own RLIMIT_RTTIME can.

Commands and handlers are confined (Linux). Commands write to the directories of --root,
handlers to the working directory and to --writable, and both to a home and a temporary
directory of their agent; they read programs, libraries and toolchains; no other file exists
for them, and no process but their agent's, for a handler those of its step. A handler has the
variables PATH, LANG and those of --env. Of the network they reach everything outside of this machine, unless --network
says otherwise. Where that cannot be had, they are refused, unless --unconfined lets them
do whatever this worker may, with all variables but QUARTET_….`,
		Example: `  quartet worker --root ~/src --label os=linux --capacity 8
  quartet worker --root /srv/gpu --pool gpu --max-memory-mib 8192
  quartet worker --pool go --handler ./run-step --capacity 4
  quartet worker --pool go,slow --handler 'go test "$QUARTET_STEP_TITLE"'`,
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&o.commands.Roots, "root", nil, "Execute commands in this directory and below; may be repeated")
	fl.StringVar(&o.commands.Isolate, "isolate", "none", "Which agents have a directory of their own below --root: "+
		"none (all share it), namespace (those of a namespace share one) or agent")
	fl.StringVar(&o.handler, "handler", "", "Execute steps of boards with this shell command")
	fl.StringSliceVar(&o.steps.Pools, "pool", nil, "The pool to join (required with --handler); may be repeated")
	fl.IntVar(&o.capacity, "capacity", 0, "How many commands or steps run at once (default 4 commands, 1 step)")
	fl.StringVar(&o.steps.ID, "id", "", "The worker's name, the same after each restart (default: the host's name "+
		"and a random suffix)")
	fl.StringToStringVar(&o.steps.Labels, "label", nil, "A label, such as os=linux; may be repeated")
	fl.StringVar(&o.commands.StateDir, "state-dir", "", "Directory of this worker's lock file (default: the system's "+
		"temporary directory)")
	fl.Int64Var(&o.memory, "max-memory-mib", 0, "Maximum memory of one command in MiB; 0: no limit")
	fl.IntVar(&o.commands.MaxProcesses, "max-processes", 0, "Maximum number of processes of one command; 0: no limit")
	fl.StringVar(&o.commands.Network, "network", string(confine.NetworkOutside),
		"Network that commands and handlers reach: none, outside (all but this machine) or all")
	fl.StringSliceVar(&o.commands.Readable, "readable", nil, "A further file or directory that may be read; may be "+
		"repeated")
	fl.StringSliceVar(&o.commands.Hidden, "hidden", nil, "A file or directory that does not exist for them; may be "+
		"repeated")
	fl.BoolVar(&o.commands.Unconfined, "unconfined", false, "Let commands or the handler do whatever this worker may")
	fl.StringSliceVar(&o.writable, "writable", nil, "A directory that the handler may write, beside the working "+
		"directory; may be repeated")
	fl.StringSliceVar(&o.env, "env", nil, "The name of a variable of this worker that the handler has; may be repeated")
	cmd.RunE = s.ConnectedWithNotice(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
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
			o.steps.ID = generateName()
		}
		o.commands.Hidden = append(o.commands.Hidden, s.SecretFiles()...)
		o.steps.Capacity, o.commands.Guard, o.commands.Confine = o.capacity, guard, confiner
		if len(o.commands.Roots) > 0 {
			return executeCommands(cmd, conn, execute, o)
		}
		return executeSteps(cmd, conn, o)
	})
	return cmd
}

// check refuses combinations and values of flags that make no sense.
func (o *flags) check() error {
	steps := strings.TrimSpace(o.handler) != ""
	switch {
	case steps && len(o.commands.Roots) > 0:
		return exit.UsageError("give --root for commands or --handler for steps; a process executes one of both")
	case !steps && len(o.commands.Roots) == 0 && len(o.steps.Pools) == 0:
		return exit.UsageError(
			"give --root DIR to execute commands, or --pool and --handler to execute steps of boards")
	case !steps && len(o.commands.Roots) == 0:
		return exit.UsageError("--handler is missing; or --root DIR, to execute the commands of that pool")
	case steps && len(o.steps.Pools) == 0:
		return exit.UsageError("--pool is missing")
	case steps && (o.memory != 0 || o.commands.MaxProcesses != 0):
		return exit.UsageError("--max-memory-mib and --max-processes are for commands, with --root")
	case steps && o.commands.Isolate != "none":
		return exit.UsageError("--isolate is for commands, with --root")
	case !steps && len(o.writable)+len(o.env) > 0:
		return exit.UsageError("--writable and --env are for --handler; commands write to the directories of --root, " +
			"and have variables of their own")
	case o.capacity < 1 || o.capacity > 10_000:
		return exit.UsageError(fmt.Sprintf("--capacity %d: must be 1 to 10000", o.capacity))
	case o.memory < 0 || o.memory > 1<<24:
		return exit.UsageError(fmt.Sprintf("--max-memory-mib %d: must be 1 to %d, or 0 for no limit", o.memory, 1<<24))
	case o.commands.MaxProcesses < 0:
		return exit.UsageError(fmt.Sprintf("--max-processes %d: must be at least 1, or 0 for no limit",
			o.commands.MaxProcesses))
	}
	if _, err := confine.ParseNetwork(o.commands.Network); err != nil {
		return exit.UsageError("--" + err.Error())
	}
	return nil
}

// executeCommands runs the worker for commands of agents.
func executeCommands(cmd *cobra.Command, conn *grpc.ClientConn, execute Execute, f flags) error {
	if execute == nil {
		return errors.New("this binary has no worker")
	}
	p := output.New(cmd.ErrOrStderr())
	o := f.commands
	o.ID, o.Pools, o.Labels, o.Capacity = f.steps.ID, f.steps.Pools, f.steps.Labels, f.capacity
	o.MaxMemory = f.memory << 20
	o.Report = func(line string) { p.Printf("%s\n", terminal.Printable(line)) }
	return execute(cmd.Context(), conn, o)
}

// generateName returns a worker's name: the characters of the host's name that
// are allowed, and a random suffix, because two workers of one host must not have
// the same name.
func generateName() string {
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

// confineVerb is the hidden command that runs the helper of a sandbox.
const confineVerb = "run-confined"

// ConfineCommand returns the command line that starts the binary of this process as the helper of a sandbox. It is nil
// on systems other than Linux. It does not check whether this machine allows sandboxes.
func ConfineCommand() []string {
	if runtime.GOOS != "linux" {
		return nil
	}
	return []string{"/proc/self/exe", confineVerb}
}

// RunConfinedCommand returns the hidden command that a worker starts for each sandbox.
func RunConfinedCommand() *cobra.Command {
	return &cobra.Command{
		Use: confineVerb, Hidden: true, Args: input.None, Short: "Start the commands of one sandbox",
		Example: "  quartet " + confineVerb + "    # started by a worker, with a socket as descriptor 3",
		RunE:    func(*cobra.Command, []string) error { return confine.Main() },
	}
}

// guardVerb is the hidden command that runs a guard process.
const guardVerb = "guard-processes"

// GuardCommand returns the command line that starts the binary of this process as
// a guard. It is nil where the path of the binary is unknown.
func GuardCommand() []string {
	if runtime.GOOS == "linux" {
		return []string{"/proc/self/exe", guardVerb} // valid even if the file was replaced by a newer one
	}
	exe, err := os.Executable()
	if err != nil {
		return nil
	}
	return []string{exe, guardVerb}
}

// GuardProcessesCommand returns the hidden command that a worker starts as its
// guard. It waits until the worker ends and then ends the processes left behind.
func GuardProcessesCommand() *cobra.Command {
	return &cobra.Command{
		Use: guardVerb + " MARK", Hidden: true, Args: input.Exactly("MARK"),
		Short:   "End the processes that a killed worker leaves behind",
		Example: "  quartet " + guardVerb + " 1202763838112399360    # started by a worker, with a pipe as stdin",
		RunE: func(cmd *cobra.Command, args []string) error {
			return guardProcesses(cmd, args[0])
		},
	}
}
