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

// MCPOptions are what `quartet mcp` is told.
type MCPOptions struct {
	// AgentID is whose memory it is.
	AgentID string
	// Create makes the agent if it is not there.
	Create bool
	// In and Out lead to the client.
	In  io.Reader
	Out io.Writer
}

func mcpCommand(s *session.Session, serve func(context.Context, grpc.ClientConnInterface, MCPOptions) error) *cobra.Command {
	var o MCPOptions
	cmd := &cobra.Command{
		Use: "mcp --agent AGENT", Short: "Give a coding agent its durable memory, over MCP on stdio", Args: input.None,
		Long: `Serve one agent's tools, plans and briefs over the Model Context Protocol on stdin
and stdout, as a client of a running server. Coding agents start this command by
themselves; see docs/guides/durable-memory.md. Over HTTP the same is at
http://127.0.0.1:7480/mcp/AGENT.`,
		Example: "  quartet mcp --agent keeper --create\n  claude mcp add quartet -- quartet mcp --agent keeper --create",
		RunE: s.ConnectedWithNotice(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			if serve == nil {
				return errors.New("this binary has no MCP server")
			}
			if o.AgentID == "" {
				return exit.UsageError("--agent AGENT is missing: whose memory it is")
			}
			o.In, o.Out = cmd.InOrStdin(), cmd.OutOrStdout()
			return serve(cmd.Context(), conn, o)
		}),
	}
	cmd.Flags().StringVar(&o.AgentID, "agent", "", "The agent whose memory it is")
	cmd.Flags().BoolVar(&o.Create, "create", false, "Make the agent if it is not there (public_named)")
	return cmd
}
