package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/local"
	"quartet/services/cli/session"
)

// MCPOptions are the flags and streams of `quartet mcp`.
type MCPOptions struct {
	// AgentID names the agent that the client uses as its memory.
	AgentID string
	// Create creates the agent if it does not exist.
	Create bool
	// Tools names the set of tools.
	Tools string
	// Address is the server's address, for messages.
	Address string
	// Elsewhere is the address of a running server of this user, if a server could not be started because its data
	// directory is in use; "" if that is not so or no address is known.
	Elsewhere string
	// In and Out are the client's ends of the protocol.
	In  io.Reader
	Out io.Writer
}

// mcpCommand returns `quartet mcp`. listens returns where `quartet dev` would listen now; if listens is nil, the
// command starts no server.
func mcpCommand(s *session.Session, serve func(context.Context, grpc.ClientConnInterface, MCPOptions) error,
	listens func() string,
) *cobra.Command {
	var o MCPOptions
	var noStart bool
	cmd := &cobra.Command{
		Use: "mcp --agent AGENT", Short: "Give a coding agent its durable memory, over MCP on stdio", Args: input.None,
		Long: `Serve the tools, plans and briefs of one agent over the Model Context Protocol on
stdin and stdout, as a client of a running server. A coding agent starts this
command itself; see docs/guides/durable-memory.md. The same is served over HTTP at
http://127.0.0.1:7480/mcp/AGENT, with the line in the server's token file as header.

--tools memory serves the ten tools of a durable memory, with short schemas that
take less than 2000 tokens of the model's context; --tools all serves every tool.

If no server answers at --address, and that is where "quartet dev" would listen on this
machine, one is started, which goes on when this command ends; its log is server.log in
the directory of the token file, and it executes no commands. With --no-start none is,
nor where it does not become ready, as when a server at another address has its data:
the session then starts without tools and tells the model how to start a server, or where
one runs; the tools appear when it runs.`,
		Example: "  quartet mcp --agent keeper --create\n  claude mcp add quartet -- quartet mcp --agent keeper " +
			"--create --tools memory",
	}
	serving := s.ConnectedWithNotice(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		o.Address = s.Address()
		o.In, o.Out = cmd.InOrStdin(), cmd.OutOrStdout()
		return serve(cmd.Context(), conn, o)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if serve == nil {
			return errors.New("this binary has no MCP server")
		}
		if o.AgentID == "" {
			return exit.UsageError("--agent AGENT is missing: the agent that stores the memory")
		}
		if !noStart {
			var err error
			if o.Elsewhere, err = startLocal(s, cmd, listens); err != nil {
				return err
			}
		}
		return serving(cmd, args)
	}
	cmd.Flags().StringVar(&o.AgentID, "agent", "", "The agent that stores the memory")
	cmd.Flags().BoolVar(&noStart, "no-start", false, "Start no server if none runs")
	cmd.Flags().BoolVar(&o.Create, "create", false, "Create the agent if it does not exist (preset public_named)")
	cmd.Flags().StringVar(&o.Tools, "tools", "all", "The tools that the model gets: all or memory")
	return cmd
}

// startLocal starts the server of this user if nothing listens at the session's address and the server would listen
// there: at a loopback address, without TLS and credential. If the server does not become ready, startLocal reports
// that on stderr and returns no error: the session begins without it. elsewhere is as MCPOptions.Elsewhere.
func startLocal(s *session.Session, cmd *cobra.Command, listens func() string) (elsewhere string, err error) {
	if err := s.Load(); err != nil {
		return "", err
	}
	if listens == nil || s.HasToken() || s.UsesTLS() || s.Address() != listens() || !local.Loopback(s.Address()) ||
		local.Listens(cmd.Context(), s.Address()) {
		return "", nil
	}
	err = s.WithConnection(func(conn *grpc.ClientConn) error {
		log, err := local.Start(cmd.Context(), conn)
		var inUse *local.InUseError
		if errors.As(err, &inUse) && len(inUse.Servers) > 0 {
			elsewhere = inUse.Servers[0]
		}
		if err != nil {
			cmd.PrintErrf("quartet: %v\n", err)
		} else {
			cmd.PrintErrf("quartet: started a server at %s; its log is %s\n", s.Address(), log)
		}
		return nil
	})
	return elsewhere, err
}
