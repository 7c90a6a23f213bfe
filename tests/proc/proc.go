// Package proc runs binaries as processes, so that tests can kill and freeze them.
package proc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Thorough reports whether tests are as large as make verify runs them. Otherwise those that repeat something, such as
// a kill of the server, repeat it a few times, so that make test takes minutes.
func Thorough() bool { return os.Getenv("QUARTET_THOROUGH") != "" }

// Scale returns thorough if tests are Thorough, and few otherwise.
func Scale[T any](few, thorough T) T {
	if Thorough() {
		return thorough
	}
	return few
}

// Long skips a test in go test -short: one that starts processes, needs another program than
// the go command, or waits for a long time. make test runs it.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
}

// Build builds a main package of this module, or of one it depends on, into dir, and returns the
// path of the binary. It uses go run, which caches linked binaries, because linking takes longest.
// flags are further flags of the go command; -C with the directory of another module is the first. The result of the
// calling test then depends on the sources, see DependOnSources.
func Build(dir, pkg, name string, flags ...string) (string, error) {
	bin := filepath.Join(dir, name)
	if err := DependOnSources(); err != nil {
		return "", err
	}
	args := []string{"run"}
	if len(flags) > 1 && flags[0] == "-C" { // which go wants first
		if err := readTree(flags[1]); err != nil {
			return "", err
		}
		args, flags = append(args, flags[:2]...), flags[2:]
	}
	cmd := exec.Command("go", slices.Concat(args, []string{"-ldflags=-w", "-exec", "cp"}, flags, []string{pkg, bin})...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return bin, nil
}

// Without GOFLAGS, the go commands of tests use those of make test, so that nothing is compiled twice.
func init() {
	if os.Getenv("GOFLAGS") == "" {
		_ = os.Setenv("GOFLAGS", "-trimpath -tags=grpcnotrace,nomodels")
		_ = os.Setenv("CGO_ENABLED", "0")
	}
}

// NodePackages installs the packages of package-lock.json in dir, if they are missing, for
// clients that are not written in Go. make clients installs them, and Node, beforehand.
func NodePackages(ctx context.Context, dir string) error {
	// npm writes this file last.
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil {
		return nil
	}
	if _, err := exec.LookPath("npm"); err != nil {
		return errors.New("this test needs Node and npm, which are not installed here; make clients installs them")
	}
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return nil
}

// The ports that FreeAddr chooses from lie below those that systems give to connections, from
// 32 768 on Linux: otherwise an outgoing connection of any test could take the port before the
// server of this one listens.
const (
	firstPort = 12_000
	ports     = 20_000
)

// taken are the ports that this process chose already.
var taken sync.Map

// FreeAddr returns a loopback address that is free now and that it has not returned before in
// this process. Another process may choose the same; with as many ports that is improbable.
func FreeAddr() (string, error) {
	var err error
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(ports))
		if _, known := taken.LoadOrStore(addr, true); known {
			continue
		}
		var l net.Listener
		if l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", err
}

// Process is one binary with its arguments. It can be started again after it has ended.
type Process struct {
	Binary string
	Args   []string
	Log    string // file that gets stdout and stderr
	// Ready reports whether the process can be used. Start waits for it.
	Ready func(ctx context.Context) bool

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start runs the binary and returns when it is ready. If ctx ends before that, it returns
// an error and the process still runs.
func (p *Process) Start(ctx context.Context) error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own
	cmd := exec.Command(p.Binary, p.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no test leaves a server behind
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		// Pdeathsig is about the thread that started the child, and threads end with
		// goroutines that keep theirs. This one stays as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // a killed process ends with an error, as it should
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.mu.Lock()
	p.cmd, p.ended = cmd, ended
	p.mu.Unlock()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if p.Ready(ctx) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready: %w\n%s", filepath.Base(p.Binary), ctx.Err(), p.tail())
		case <-ended:
			return fmt.Errorf("%s ended before it was ready\n%s", filepath.Base(p.Binary), p.tail())
		case <-tick.C:
		}
	}
}

func (p *Process) tail() string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-3000):])
}

func (p *Process) signal(s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.cmd.Process == nil {
		return errors.New("not started")
	}
	return p.cmd.Process.Signal(s)
}

// PID returns the process's number; it must have been started.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Kill sends SIGKILL and waits for the end. It returns nil if the process has ended, and an
// error if it was never started.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	return nil
}

// Freeze suspends the process until Thaw. It returns when each of its threads is suspended: the
// signal reaches them one by one. Kill ends the process also while it is frozen.
func (p *Process) Freeze() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pid := p.PID()
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Thaw lets a frozen process go on.
func (p *Process) Thaw() error { return p.signal(syscall.SIGCONT) }

// Interrupt asks the process to stop in order and waits for its end. If ctx ends before
// that, the process still runs. A process that has ended already is an error.
func (p *Process) Interrupt(ctx context.Context) error {
	if err := p.signal(os.Interrupt); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Quartet is a `quartet dev` or `quartet serve` process.
type Quartet struct {
	Process
	GRPC, HTTP, DataDir string
}

// NewQuartet prepares a server over dir on free ports. With a NATS URL it
// serves everything over that server instead of an embedded one.
func NewQuartet(binary, dir, natsURL string, more ...string) (*Quartet, error) {
	grpcAddr, err := FreeAddr()
	if err != nil {
		return nil, err
	}
	httpAddr, err := FreeAddr()
	if err != nil {
		return nil, err
	}
	q := &Quartet{GRPC: grpcAddr, HTTP: httpAddr, DataDir: dir}
	args := []string{"dev"}
	if natsURL != "" {
		shared := filepath.Join(filepath.Dir(dir), "archive") // of all servers whose directories are side by side
		if err := os.MkdirAll(shared, 0o700); err != nil {
			return nil, err
		}
		args = []string{"serve", "all", "--nats-url", natsURL, "--archive", shared}
	}
	args = append(args, "--data-dir", dir, "--grpc-addr", grpcAddr, "--http-addr", httpAddr, "--log-level", "warn",
		"--worker-roots", dir+"-workspace")
	q.Process = Process{
		Binary: binary, Args: append(args, more...), Log: filepath.Join(dir, "server.log"),
		Ready: func(ctx context.Context) bool { return OK(ctx, "http://"+httpAddr+"/readyz") },
	}
	return q, errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(dir+"-workspace", 0o700))
}

// NewNATS prepares a nats-server process that syncs every write.
func NewNATS(binary, dir string) (*Process, string, error) {
	addr, err := FreeAddr()
	if err != nil {
		return nil, "", err
	}
	conf := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: %q\nmax_payload: 8388608\njetstream { store_dir: %q, sync_interval: always }\n", addr,
		filepath.Join(dir, "store"))
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(conf, []byte(text), 0o600)); err != nil {
		return nil, "", err
	}
	return &Process{
		Binary: binary, Args: []string{"-c", conf}, Log: filepath.Join(dir, "nats.log"),
		Ready: func(ctx context.Context) bool {
			c, err := (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext(ctx, "tcp", addr)
			if err != nil {
				return false
			}
			return c.Close() == nil
		},
	}, "nats://" + addr, nil
}

// OK reports whether a URL answers 200.
func OK(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}
