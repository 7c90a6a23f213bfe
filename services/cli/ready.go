package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"quartet/pkg/fault"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/session"
)

// readyCommand returns `quartet ready`.
func readyCommand(s *session.Session) *cobra.Command {
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "ready", Short: "Check whether the server at --address is ready", Args: input.None,
		Long: `Check whether the server at --address is ready to serve all its services. The exit
code is 0 if it is ready, and 5 if it is not or cannot be reached. The check needs
no credential, so that health checks of containers and scripts can use it.`,
		Example: "  quartet ready\n  until quartet ready; do sleep 1; done",
		RunE: s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err != nil {
				return err
			}
			if resp.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
				return fault.NotReady.Newf("the server at %s runs but is not ready; its log says why",
					terminal.Printable(s.Address()))
			}
			return nil
		}),
	}
	cmd.Flags().DurationVar(&limit, "timeout", 2*time.Second, "How long to wait for the answer")
	return cmd
}
