package main

import (
	"context"
	"io"
	"os"

	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	"quartet/pkg/tracing"
	"quartet/pkg/version"
	"quartet/services/board/wal"
	"quartet/services/cli"
	"quartet/services/cli/boards"
	"quartet/services/mcp"
	"quartet/services/runner"
)

// clients returns the functions of the command line that exist on every system: the clients and tools.
func clients() cli.Servers {
	return cli.Servers{
		Replay: func(log io.Reader) (boards.WAL, error) {
			r, err := wal.Replay(log)
			return boards.WAL{Board: r.Board, Lines: r.Lines, Torn: r.Torn}, err
		},
		MCP: func(ctx context.Context, conn grpc.ClientConnInterface, o cli.MCPOptions) error {
			s, err := mcp.New(mcp.Config{Version: version.Get().String()}, mcp.Deps{
				Conn: func(string) (grpc.ClientConnInterface, error) { return conn, nil },
			})
			if err != nil {
				return err
			}
			return s.ServeStdio(ctx, o.In, o.Out, mcp.Options{
				AgentID: o.AgentID, Create: o.Create, Tools: o.Tools,
				Address: o.Address, Elsewhere: o.Elsewhere,
			})
		},
		Run: func(ctx context.Context, conn grpc.ClientConnInterface, o cli.RunOptions) error {
			tracer, flush, err := tracing.ForClient(ctx, "quartet-runner", "")
			if err != nil {
				return fault.InvalidArgument.New(err.Error())
			}
			defer flush()
			r, err := runner.New(runner.Config{
				Tracer: tracer, AgentIDs: o.AgentIDs, Provider: o.Provider, Model: o.Model, BaseURL: o.BaseURL,
				Key:       os.Getenv(runner.KeyVariable(o.Provider)),
				MaxTokens: o.MaxTokens, MaxRounds: o.MaxRounds, MaxTurns: o.MaxTurns, Concurrency: o.Concurrency,
				Summaries: o.Summaries,
				Workspace: o.Workspace, System: o.System, Out: o.Out, JSON: o.JSON, Colour: o.Colour,
			}, client.New(conn))
			if err != nil {
				return fault.InvalidArgument.New(err.Error())
			}
			return r.Run(ctx)
		},
		Version: version.Get(),
	}
}
