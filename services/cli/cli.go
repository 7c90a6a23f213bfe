package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"quartet/pkg/archive"
	"quartet/pkg/conf"
	"quartet/pkg/version"
)

// DefaultAddress is where `quartet dev` serves gRPC.
const DefaultAddress = "127.0.0.1:7481"

// Servers is how the command line runs servers without knowing any.
type Servers struct {
	// Flags declares the servers' settings. It is called once: dev and serve
	// share them.
	Flags func(fs *pflag.FlagSet)
	// Dev runs everything in one process until ctx ends.
	Dev func(ctx context.Context, flags *pflag.FlagSet) error
	// Serve runs some services until ctx ends.
	Serve func(ctx context.Context, services []string, flags *pflag.FlagSet) error
	// MCP serves one agent over MCP to a client that is at the other end of in
	// and out, as a client of the server behind conn.
	MCP func(ctx context.Context, conn grpc.ClientConnInterface, o MCPOptions) error
	// Run drives agents with a model until ctx ends, as a client of the server
	// behind conn.
	Run func(ctx context.Context, conn grpc.ClientConnInterface, o RunOptions) error
	// Restore makes an installation out of a backup.
	Restore func(ctx context.Context, flags *pflag.FlagSet, file string) (archive.Manifest, archive.Totals, error)
	// Replay makes a board out of a log alone.
	Replay func(log io.Reader) (WAL, error)
	// Worker executes commands until ctx ends, as a client of the server behind conn.
	Worker func(ctx context.Context, conn grpc.ClientConnInterface, o WorkerOptions) error
	// Guard is how this binary is started to end what a worker leaves that is
	// killed: GuardCommand in the binary, nothing in tests, which are another binary.
	Guard []string
	// Doctor says what is wrong with an installation.
	Doctor func(ctx context.Context, conn grpc.ClientConnInterface, o DoctorOptions) []Finding
	// Version describes the build.
	Version version.Info
	// Now is the time that ages are counted to; nil: the machine's.
	Now func() time.Time
}

// session is one invocation: where to, as whom, and how to show it.
type session struct {
	address   string
	token     string
	output    string
	requestID string
	tls       secured
	bootstrap bool // act by the installation's key file
	keyFile   string
	now       func() time.Time
	replay    func(io.Reader) (WAL, error)
	worker    func(context.Context, grpc.ClientConnInterface, WorkerOptions) error
	guard     []string
	settings  *conf.Set
}

// Main runs the command line of this process and gives its exit code.
func Main(s Servers) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal asks for an orderly end; a second one is not held back.
	context.AfterFunc(ctx, stop)
	return Run(ctx, s, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// Run is Main with everything given.
func Run(ctx context.Context, s Servers, args []string, in io.Reader, out, errs io.Writer) int {
	root := Command(s)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	return report(cmd, err)
}

const rootHelp = `Quartet is a durable control plane for AI agents.

It keeps four things and nothing else: agents (who thinks), work items (what is
being achieved), tasks (what runs), and waits (why something stands still and
what starts it again).

Begin with:
  quartet dev                                  all of it, on this machine
  quartet agent spawn keeper                   an agent
  quartet agent say keeper "Prepare the release"
  quartet explain keeper                       why it does what it does, or nothing
  quartet events -f                            what happens

Exit codes:
  0  done
  1  failed
  2  used wrongly, or the request was refused as invalid
  3  not found
  4  conflict: the record's state or revision does not allow it
  5  unavailable: the server cannot be reached, or could not answer in time

-o json writes one JSON document to stdout and nothing else; lists and streams
of events are lines of JSON only where the help says so. Errors go to stderr.`

// Command builds the root command.
func Command(s Servers) *cobra.Command {
	ss := &session{now: s.Now, replay: s.Replay, worker: s.Worker, guard: s.Guard}
	if ss.now == nil {
		ss.now = time.Now
	}
	root := &cobra.Command{
		Use: "quartet", Short: "A durable control plane for AI agents", Long: rootHelp,
		SilenceErrors: true, SilenceUsage: true, Version: s.Version.String(),
	}
	root.SetVersionTemplate("quartet {{.Version}}\n")
	groupOnly(root)
	flags := root.PersistentFlags()
	ss.settings = conf.New(flags)
	ss.settings.String(&ss.address, "address", DefaultAddress, "Where the server's gRPC is, host:port ($QUARTET_ADDRESS)")
	ss.settings.Secret(&ss.token, "token", "Credential ($QUARTET_TOKEN, or a file in $QUARTET_TOKEN_FILE)")
	ss.settings.Bool(&ss.tls.on, "tls", false, "Connect with TLS; also where one of the next three is given ($QUARTET_TLS)")
	ss.settings.String(&ss.tls.files.CA, "tls-ca-file", "", "Who signs the server's certificate (PEM); empty: the system's authorities")
	ss.settings.String(&ss.tls.files.Cert, "tls-cert-file", "", "A certificate to show to the server (PEM)")
	ss.settings.String(&ss.tls.files.Key, "tls-key-file", "", "Its private key (PEM)")
	flags.StringVarP(&ss.output, "output", "o", formTable, "How to answer: table or json")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err.Error()) })

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
	grouped("run", s.commands(ss)...)
	grouped("run", ss.workerCommand(), ss.mcpCommand(s.MCP), ss.runCommand(s.Run), ss.certsCommand())
	grouped("use", ss.agentCommand(), ss.workCommand(), ss.waitCommand(), ss.triggerCommand(), ss.timerCommand(), ss.taskCommand(), ss.boardCommand(), ss.keyCommand())
	grouped("see", ss.explainCommand(), ss.eventsCommand(), ss.readyCommand(), ss.whoamiCommand())
	root.AddCommand(guardCommand(), &cobra.Command{
		Use: "version", Short: "Show version, revision and date of this binary", Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ss.output == formJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(s.Version)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), s.Version.Long())
			return err
		},
	})
	return root
}

// groupOnly makes a command one that only has others below it. Without this
// cobra answers a mistyped verb with help and exit code 0.
func groupOnly(c *cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		text := fmt.Sprintf("%q is not a command of %q", args[0], cmd.CommandPath())
		for _, near := range cmd.SuggestionsFor(args[0]) {
			text += fmt.Sprintf("; did you mean %q?", near)
			break
		}
		return usage(text)
	}
	c.SuggestionsMinimumDistance = 2
	return c
}

func (s Servers) commands(ss *session) []*cobra.Command {
	shared := pflag.NewFlagSet("servers", pflag.ContinueOnError)
	if s.Flags != nil {
		s.Flags(shared)
	}
	dev := &cobra.Command{
		Use: "dev", Short: "Run everything in this process", Args: none,
		Long: `Run all services in one process, with the broker inside, data on this disk, and
only this machine let in. Nothing is lost when it ends, however it ends.`,
		Example: "  quartet dev\n  quartet dev --data-dir /tmp/quartet",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.Dev == nil {
				return errors.New("this binary has no servers")
			}
			return s.Dev(cmd.Context(), shared)
		},
	}
	serve := &cobra.Command{
		Use: "serve SERVICE...", Short: "Run some services in this process", Args: atLeast("SERVICE"),
		Long: `Run the named services in this process, against a NATS cluster and the services
of other processes. "all" runs all of them.`,
		Example: "  quartet serve agent work --nats-url nats://nats:4222 --addresses task=task:7481,waiting=waiting:7481\n  quartet serve gateway --http-addr :7480",
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.Serve == nil {
				return errors.New("this binary has no servers")
			}
			return s.Serve(cmd.Context(), args, shared)
		},
	}
	dev.Flags().AddFlagSet(shared)
	serve.Flags().AddFlagSet(shared)
	return []*cobra.Command{dev, serve, ss.backupCommand(), ss.restoreCommand(s.Restore, shared), ss.doctorCommand(s.Doctor, shared)}
}

// none, exactly and atLeast check arguments and name what is missing.
func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Sprintf("%q takes no arguments, got %q", cmd.CommandPath(), args[0]))
	}
	return nil
}

func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return usage(fmt.Sprintf("%q is one argument too many; put text with blanks in quotes", args[len(names)]))
		}
		return atLeast(names...)(cmd, args)
	}
}

func atLeast(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usage(names[len(args)] + " is missing")
		}
		return nil
	}
}
