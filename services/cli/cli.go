package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"quartet/pkg/conf"
	"quartet/pkg/version"
	"quartet/services/cli/admin"
	"quartet/services/cli/agents"
	"quartet/services/cli/boards"
	"quartet/services/cli/events"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/local"
	"quartet/services/cli/session"
	"quartet/services/cli/setup"
	"quartet/services/cli/work"
	"quartet/services/cli/workers"
)

// Servers is what the binary provides to the command line, which imports no
// service. A nil function makes its command fail with an error that says so.
type Servers struct {
	// Flags declares the servers' settings. It is called once: dev and serve
	// share them.
	Flags func(fs *pflag.FlagSet)
	// Dev runs everything in one process until ctx ends.
	Dev func(ctx context.Context, flags *pflag.FlagSet) error
	// Serve runs some services until ctx ends.
	Serve func(ctx context.Context, services []string, flags *pflag.FlagSet) error
	// MCP serves one agent over MCP on o.In and o.Out until ctx or o.In ends, as a
	// client of the server behind conn.
	MCP func(ctx context.Context, conn grpc.ClientConnInterface, o MCPOptions) error
	// Run drives agents with a model until ctx ends, as a client of the server
	// behind conn.
	Run func(ctx context.Context, conn grpc.ClientConnInterface, o RunOptions) error
	// Restore creates an installation from a backup.
	Restore admin.Restore
	// Verify reads the journals of an installation.
	Verify admin.Verify
	// Repair repairs them.
	Repair admin.Repair
	// Replay builds a board from its log alone.
	Replay boards.Replay
	// Worker executes commands until ctx ends, as a client of the server behind conn.
	Worker workers.Execute
	// Guard is the command line of a guard process, which ends the processes that a
	// killed worker leaves behind: workers.GuardCommand in the binary. It is empty
	// in tests, because a test binary cannot be started as a guard.
	Guard []string
	// Confine is the command line of the process that confines commands:
	// workers.ConfineCommand in the binary, empty in tests.
	Confine []string
	// Doctor diagnoses an installation.
	Doctor admin.Examine
	// ClientsOnly says that the build has no servers and workers: their commands refuse to run.
	ClientsOnly bool
	// Version describes the build.
	Version version.Info
	// Now returns the time from which ages are counted; nil: the machine's clock.
	Now func() time.Time
}

// Main runs the command line of this process and returns its exit code.
func Main(s Servers) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal starts an orderly stop; a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	return Run(ctx, s, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// Run is Main with explicit arguments and streams. The command ends soon after ctx does. Errors are
// written to errs.
func Run(ctx context.Context, s Servers, args []string, in io.Reader, out, errs io.Writer) int {
	root := Command(s)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exit.OK
	}
	return exit.Report(cmd, err)
}

// rootHelp is the help of `quartet`.
const rootHelp = `Quartet is a durable control plane for AI agents.

It stores agents and their messages, work items (what is to be achieved), tasks
(commands that run on workers), boards (graphs of steps for many workers), and
waits (why work is stopped, and what resumes it).

First steps:
  quartet dev                                  run all services on this machine
  quartet agent spawn keeper                   create an agent
  quartet agent say keeper "Prepare the release"
  quartet explain keeper                       what the scheduler decides, and why
  quartet events -f                            follow the events
  quartet console                              see all of it in a browser

Exit codes:
  0  success
  1  failure
  2  wrong usage, or the request was refused as invalid
  3  not found
  4  conflict: the record's state or revision does not allow it
  5  unavailable: the server cannot be reached, or did not answer in time

-o json writes one JSON document to stdout and nothing else; lists and streams
of events are lines of JSON only where the help says so. Errors go to stderr, with
-o json as one JSON document.

The beginning of an id suffices where it is the only one that begins so. Times are in
the local time zone, with --utc in UTC. quartet completion --help says how a shell
completes commands, agents, items and boards.`

// Command returns the root command.
func Command(s Servers) *cobra.Command {
	root := &cobra.Command{
		Use: "quartet", Short: "A durable control plane for AI agents", Long: rootHelp,
		SilenceErrors: true, SilenceUsage: true, Version: s.Version.String(),
	}
	root.SetVersionTemplate("quartet {{.Version}}\n")
	input.Group(root)
	ss := session.New(root.PersistentFlags(), s.Now)
	shared := pflag.NewFlagSet("servers", pflag.ContinueOnError)
	if s.Flags != nil {
		s.Flags(shared)
	}
	ss.Know(shared)
	input.Choices(root, "output", "table", "json")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit.UsageError(err.Error()) })

	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Servers:"},
		&cobra.Group{ID: "use", Title: "Planes:"},
		&cobra.Group{ID: "see", Title: "Insight:"},
	)
	grouped := func(id string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = id
			root.AddCommand(c)
		}
	}
	grouped("run", s.serverCommands(ss, shared)...)
	grouped("run", absent(workers.Command(ss, s.Worker, s.Guard, s.Confine), s.ClientsOnly),
		mcpCommand(ss, s.MCP, listens(shared)), setup.Command(ss, listens(shared)), local.ServiceCommand(ss, shared),
		runCommand(ss, s.Run), admin.CertsCommand(ss))
	grouped("use", agents.Command(ss), work.ItemCommand(ss), work.WaitCommand(ss), work.TriggerCommand(ss),
		work.TimerCommand(ss), work.TaskCommand(ss), boards.Command(ss, s.Replay), admin.KeyCommand(ss),
		admin.InstallationKeyCommand(ss), contextCommand(ss))
	grouped("see", consoleCommand(ss), agents.ExplainCommand(ss), work.PrimeCommand(ss),
		events.Command(ss), readyCommand(ss), admin.StatusCommand(ss), admin.AuditCommand(ss), admin.UsageCommand(ss),
		admin.WhoAmICommand(ss))
	root.AddCommand(workers.GuardProcessesCommand(), workers.RunConfinedCommand(), versionCommand(ss, s.Version))
	ss.Complete(root)
	return root
}

// versionCommand returns `quartet version`.
func versionCommand(ss *session.Session, v version.Info) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show version, revision and date of this binary", Args: input.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ss.JSON() {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), v.Long())
			return err
		},
	}
}

// listens returns a function that returns the gRPC address at which `quartet dev` would listen with the environment
// of this process, or "" in a binary without servers. servers are the settings of servers.
func listens(servers *pflag.FlagSet) func() string {
	return func() string {
		f := servers.Lookup("grpc-addr")
		if f == nil {
			return "" // a binary without servers
		}
		return cmp.Or(os.Getenv(conf.EnvName(f.Name)), f.DefValue)
	}
}

// errNoServers is the error of a command whose function in Servers is nil.
var errNoServers = errors.New("this binary has no servers")

// serverCommands returns the commands that have the settings of the servers.
func (s Servers) serverCommands(ss *session.Session, shared *pflag.FlagSet) []*cobra.Command {
	dev := &cobra.Command{
		Use: "dev", Short: "Run everything in this process", Args: input.None,
		Long: `Run all services in one process with an embedded NATS server, and store the data
on this disk. By default only clients on this machine can connect. What was
answered is kept across a stop or a crash.

Clients of the user who runs it find its token by themselves; others are refused. The
token is in a file that this command names when it starts, for curl -H @FILE. --open
admits every user, web page and command of this machine that can connect.`,
		Example: "  quartet dev\n  quartet dev --data-dir /tmp/quartet\n  quartet dev --open",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.Dev == nil {
				return errNoServers
			}
			return s.Dev(cmd.Context(), shared)
		},
	}
	serve := &cobra.Command{
		Use: "serve SERVICE...", Short: "Run some services in this process", Args: input.AtLeast("SERVICE"),
		Long: `Run the named services in this process, with a NATS cluster and the services of
other processes. "all" runs all of them.`,
		Example: "  quartet serve agent work --nats-url nats://nats:4222 --addresses " +
			"task=task:7481,waiting=waiting:7481\n  quartet serve gateway --http-addr :7480",
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.Serve == nil {
				return errNoServers
			}
			return s.Serve(cmd.Context(), args, shared)
		},
	}
	dev.Flags().AddFlagSet(shared)
	serve.Flags().AddFlagSet(shared)
	return []*cobra.Command{
		absent(dev, s.ClientsOnly), absent(serve, s.ClientsOnly), admin.BackupCommand(ss), admin.ExportCommand(ss),
		admin.EraseCommand(ss), absent(admin.RestoreCommand(ss, s.Restore, shared), s.ClientsOnly),
		absent(admin.VerifyCommand(ss, s.Verify, shared), s.ClientsOnly),
		absent(admin.RepairCommand(ss, s.Repair, shared), s.ClientsOnly),
		absent(admin.DoctorCommand(ss, s.Doctor, shared), s.ClientsOnly),
	}
}

// absent makes a command that is missing refuse to run, whatever its flags and arguments: a build without servers does
// not know their settings, and would call each of them an unknown flag.
func absent(cmd *cobra.Command, missing bool) *cobra.Command {
	if !missing {
		return cmd
	}
	cmd.Short += " (not in this build)"
	cmd.DisableFlagParsing, cmd.Args = true, cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return fmt.Errorf(
			"%s: this build for %s/%s has the command line, MCP and runner only; run servers and workers on Linux or "+
				"macOS, and reach them with --address HOST:PORT and --token-file", cmd.CommandPath(), runtime.GOOS,
			runtime.GOARCH)
	}
	return cmd
}
