// Package local starts the server of this user on this machine, for commands that find none, and has `quartet service`:
// that server as a service of systemd or launchd, which starts it when the user logs in and after it has failed.
//
// Owns: the process that it starts, until it is ready, and the file of its log; the unit or the property list, and
// asking the service manager to load it.
// Never does: start a second server, stop one, or let a server that it starts execute commands; remove data, or write
// a credential into a unit.
// Reads: whether something listens at an address, and which servers of this user run; the definition that is
// installed, and the state that the service manager reports.
// Emits: a process of `quartet dev` that outlives this one; that definition.
package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"quartet/pkg/localtoken"
)

const (
	// dialTerm bounds the attempt to find a server, and readyTerm the time until one that was started is ready.
	dialTerm, readyTerm = 500 * time.Millisecond, 8 * time.Second
	// maxLog is the size in bytes above which a log is put aside before a server goes on with it.
	maxLog = 8 << 20
	// maxRead is how many bytes are read of what a server that has ended wrote to its log.
	maxRead = 1 << 20
	// logName is the name of the log in the directory of token files.
	logName = "server.log"
)

// Listens reports whether something accepts connections at an address.
func Listens(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTerm)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// Loopback reports whether an address is one of this machine only.
func Loopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().IsLoopback() && at.Port() != 0
}

// Start starts `quartet dev` with more flags as a process that is not ended with this one, and returns when the server
// behind conn is ready, or after a few seconds. log is the file of its log. Where another process starts a server for
// the same data at the same time, one of the two ends, and Start waits for the other. Where a server that runs has the
// data, the error is an *InUseError.
func Start(ctx context.Context, conn grpc.ClientConnInterface, flags ...string) (log string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("the path of this program: %w", err)
	}
	dir, err := localtoken.Prepare()
	if err != nil {
		return "", err
	}
	log = filepath.Join(dir, logName)
	out, err := openLog(log)
	if err != nil {
		return log, err
	}
	defer func() { _ = out.Close() }() // the server has its own
	// Without an embedded worker: nobody said in which directories it may execute commands.
	args := append([]string{"dev"}, flags...)
	if os.Getenv("QUARTET_EMBEDDED_WORKER") == "" && os.Getenv("QUARTET_WORKER_ROOTS") == "" {
		args = append(args, "--embedded-worker", "off")
	}
	before, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return log, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, args...) // it outlives this process
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = detached()
	if cmd.Dir, err = os.UserHomeDir(); err != nil {
		cmd.Dir = dir
	}
	if err := cmd.Start(); err != nil {
		return log, fmt.Errorf("start a server: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	ctx, cancel := context.WithTimeout(ctx, readyTerm)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- awaitReady(ctx, conn) }()
	for {
		select {
		case err := <-ready:
			if err != nil {
				return log, fmt.Errorf("a server was started and is not ready yet; its log is %s: %w", log, err)
			}
			return log, nil
		case err := <-ended:
			if err == nil {
				err = errors.New("it was stopped")
			}
			ended = nil
			if inUse(log, before) {
				if others := Servers(ctx); len(others) > 0 {
					return log, &InUseError{Servers: others, Log: log}
				}
			}
			// Another process may have started one meanwhile: that one has the data, and becomes ready.
			if readyErr := <-ready; readyErr != nil {
				if inUse(log, before) {
					return log, &InUseError{Log: log}
				}
				return log, fmt.Errorf("a server could not be started; its log is %s: %w", log, err)
			}
			return log, nil
		}
	}
}

// InUseError says that a server could not be started because another process has its data directory.
type InUseError struct {
	// Servers are the gRPC addresses of the running servers of this user, one of which may have the data directory;
	// empty if nothing is known of them.
	Servers []string
	// Log is the log file of the server that could not be started.
	Log string
}

// Error implements error.
func (e *InUseError) Error() string {
	text := "no server was started: its data directory is in use by a server that runs already"
	if len(e.Servers) > 0 {
		text += "; of this user, there is one at " + strings.Join(e.Servers, ", ") + ": use it with --address " +
			e.Servers[0]
	}
	return text + "; the log is " + e.Log
}

// inUse reports whether what a server wrote to its log from an offset on says that another process has its data.
func inUse(log string, offset int64) bool {
	f, err := os.Open(log)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.NewSectionReader(f, offset, maxRead))
	return err == nil && bytes.Contains(text, []byte("is in use by another process")) // services/storage/datadir
}

// awaitReady returns when the server is ready, or ctx ends.
func awaitReady(ctx context.Context, conn grpc.ClientConnInterface) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{},
			grpc.WaitForReady(true))
		if err == nil && resp.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// openLog opens a log to append to it. One that has become large is put aside first.
func openLog(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}
