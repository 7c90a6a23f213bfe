//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// insideVariable is set in the process that runs in namespaces of its own.
const insideVariable = "QUARTET_TEST_CLUSTER_INSIDE"

// Inside reports whether this process runs in the namespaces that Enter makes.
func Inside() bool { return os.Getenv(insideVariable) != "" }

// Enter runs this binary again, with the same arguments, in user, network and mount namespaces of its own, and returns
// its exit code. What it makes there ends with it.
func Enter(env ...string) (int, error) {
	cmd := exec.CommandContext(context.Background(), os.Args[0], os.Args[1:]...) // it ends by its own deadline
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(append(os.Environ(), insideVariable+"=1"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	err := cmd.Run()
	if ended := new(exec.ExitError); errors.As(err, &ended) {
		return ended.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("namespaces of its own cannot be made (they need user namespaces: sysctl "+
			"kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): %w", err)
	}
	return 0, nil
}
