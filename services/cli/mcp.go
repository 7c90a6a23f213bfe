package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/services/cli/exit"
	"quartet/services/cli/input"
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
	// In and Out are the client's ends of the protocol.
	In  io.Reader
	Out io.Writer
}

// mcpCommand returns `quartet mcp`.
func mcpCommand(s *session.Session, serve func(context.Context, grpc.ClientConnInterface, MCPOptions) error) *cobra.Command {
	var o MCPOptions
	cmd := &cobra.Command{
		Use: "mcp --agent AGENT", Short: "Give a coding agent its durable memory, over MCP on stdio", Args: input.None,
		Long: `Serve the tools, plans and briefs of one agent over the Model Context Protocol on
stdin and stdout, as a client of a running server. A coding agent starts this
command itself; see docs/guides/durable-memory.md. The same is served over HTTP at
http://127.0.0.1:7480/mcp/AGENT, with the line in the server's token file as header.

--tools memory serves the ten tools of a durable memory, with short schemas that
take less than 2000 tokens of the model's context; --tools all serves every tool.

If no server can be reached, the session starts without tools and tells the model how
to start one; the tools appear when the server runs.`,
		Example: "  quartet mcp --agent keeper --create\n  claude mcp add quartet -- quartet mcp --agent keeper --create --tools memory",
		RunE: s.ConnectedWithNotice(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			if serve == nil {
				return errors.New("this binary has no MCP server")
			}
			if o.AgentID == "" {
				return exit.UsageError("--agent AGENT is missing: the agent that stores the memory")
			}
			o.Address = s.Address()
			o.In, o.Out = cmd.InOrStdin(), cmd.OutOrStdout()
			return serve(cmd.Context(), conn, o)
		}),
	}
	cmd.Flags().StringVar(&o.AgentID, "agent", "", "The agent that stores the memory")
	cmd.Flags().BoolVar(&o.Create, "create", false, "Create the agent if it does not exist (preset public_named)")
	cmd.Flags().StringVar(&o.Tools, "tools", "all", "The tools that the model gets: all or memory")
	return cmd
}
