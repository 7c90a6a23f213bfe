package session

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"quartet/pkg/client"
	"quartet/pkg/terminal"
)

// ConnectedWithNotice is Connected for a command that waits until the server is
// reachable. While it waits it reports once on stderr that the server is unreachable, for
// a user who forgot to start one and for the log of a coding agent. It also reports when
// the connection was made, and nothing after that.
func (s *Session) ConnectedWithNotice(do func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error) func(
	*cobra.Command, []string) error {
	return s.connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		ctx, cancel := context.WithCancel(cmd.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.reportUntilReady(ctx, cmd, conn)
		}()
		defer func() {
			cancel()
			<-ended
		}()
		return do(cmd, conn, args)
	})
}

// reportUntilReady reports that the server is unreachable until the connection is
// ready for the first time, or ctx ends.
func (s *Session) reportUntilReady(ctx context.Context, cmd *cobra.Command, conn *grpc.ClientConn) {
	reported := false
	for {
		state := conn.GetState()
		switch {
		case state == connectivity.Idle:
			conn.Connect()
		case state == connectivity.TransientFailure && !reported:
			reported = true
			start := ""
			if command := client.StartCommand(s.address); command != "" {
				start = " Start one with: " + command + "."
			}
			cmd.PrintErrf("quartet: no server answers at %s; waiting for it.%s Another address: --address or "+
				"$QUARTET_ADDRESS\n", terminal.Printable(s.address), start)
		case state == connectivity.Ready && reported:
			cmd.PrintErrf("quartet: connected\n")
			return
		case state == connectivity.Ready, state == connectivity.Shutdown:
			return
		}
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}
