package cli

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// waits makes a command's RunE as calls does, for a command that waits for a
// server that is not there. It says so on stderr: whoever forgot to start one
// would look at a command that does nothing, and a coding agent's log would be
// empty. Once connected it says no more; the command has words of its own.
func (ss *session) waits(do func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error) func(*cobra.Command, []string) error {
	return ss.calls(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		ctx, cancel := context.WithCancel(cmd.Context())
		told := make(chan struct{})
		go func() {
			defer close(told)
			ss.tellUntilReady(ctx, cmd, conn)
		}()
		defer func() {
			cancel()
			<-told
		}()
		return do(cmd, conn, args)
	})
}

func (ss *session) tellUntilReady(ctx context.Context, cmd *cobra.Command, conn *grpc.ClientConn) {
	said := false
	for {
		state := conn.GetState()
		switch {
		case state == connectivity.Idle:
			conn.Connect()
		case state == connectivity.TransientFailure && !said:
			said = true
			cmd.PrintErrf("quartet: there is no server at %s; waiting for it. Start one with: quartet dev. Another address: --address or $QUARTET_ADDRESS\n", printable(ss.address))
		case state == connectivity.Ready && said:
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
