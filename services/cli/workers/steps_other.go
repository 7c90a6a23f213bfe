//go:build !unix

package workers

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
)

// guardProcesses returns an error: no worker runs on this system.
func guardProcesses(*cobra.Command, string) error {
	return fmt.Errorf("guard processes: %w on this system", errors.ErrUnsupported)
}

// executeSteps returns an error.
func executeSteps(*cobra.Command, *grpc.ClientConn, flags) error {
	return fmt.Errorf("execute steps: %w on this system", errors.ErrUnsupported)
}
