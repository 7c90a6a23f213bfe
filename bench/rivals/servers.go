package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// freePort returns a loopback port that is free at the moment.
func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("no TCP address")
	}
	return addr.Port, nil
}

// serve starts a server and waits until it accepts connections at port. The returned function, if it
// is not nil, stops the server; the caller must call it also after an error.
func serve(ctx context.Context, cmd *exec.Cmd, port int) (func() error, error) {
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() error {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait() // it was ended by the signal, so its exit code does not matter
		return nil
	}
	for range 300 {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return stop, conn.Close()
		}
		select {
		case <-ctx.Done():
			return stop, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return stop, fmt.Errorf("%s does not listen on port %d", cmd.Path, port)
}

// program returns the path of a server's program, which for PostgreSQL on Debian is not in PATH.
func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("%s is not installed: apt install postgresql redis-server", name)
	}
	return found[len(found)-1], nil
}

// unprivileged makes cmd run as the account of the PostgreSQL package, because PostgreSQL refuses to
// run as root.
func unprivileged(dir string, cmd *exec.Cmd) error {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return os.Chown(dir, int(uid), int(gid))
}

// startPostgres starts a database with PostgreSQL's default durability (fsync, synchronous_commit
// on) and memory settings for a benchmark.
func startPostgres(ctx context.Context, dir string) (url string, stop func() error, err error) {
	data := filepath.Join(dir, "postgres")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return "", nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // so that the account of PostgreSQL can enter it
		return "", nil, err
	}
	initdb, err := program("initdb")
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, initdb, "-D", data, "-U", "bench", "-A", "trust", "--no-instructions")
	if err := unprivileged(data, cmd); err != nil {
		return "", nil, err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	port, err := freePort(ctx)
	if err != nil {
		return "", nil, err
	}
	postgres, err := program("postgres")
	if err != nil {
		return "", nil, err
	}
	cmd = exec.Command(postgres, "-D", data, "-p", strconv.Itoa(port), "-k", data, //nolint:noctx // stopped by its signal
		"-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB", "-c",
		"max_connections=200",
		"-c", "log_min_messages=panic")
	if err := unprivileged(data, cmd); err != nil {
		return "", nil, err
	}
	stop, err = serve(ctx, cmd, port)
	return fmt.Sprintf("postgres://bench@127.0.0.1:%d/postgres?sslmode=disable", port), stop, err
}

// startRedis starts a Redis that syncs each write before it answers.
func startRedis(ctx context.Context, dir string) (addr string, stop func() error, err error) {
	redis, err := program("redis-server")
	if err != nil {
		return "", nil, err
	}
	data := filepath.Join(dir, "redis")
	if err := os.MkdirAll(data, 0o750); err != nil {
		return "", nil, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(redis, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", data, //nolint:noctx // stopped by its signal
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning")
	stop, err = serve(ctx, cmd, port)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), stop, err
}
