package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// server is the quartet process that the demonstration starts and kills.
type server struct {
	binary, dataDir, repo string
	grpc, http, log       string
	cmd                   *exec.Cmd
	ended                 chan struct{}
}

func newServer(binary, dataDir, repo string) (*server, error) {
	bin, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	s := &server{binary: bin, dataDir: dataDir, repo: repo, log: filepath.Join(dataDir, "server.log")}
	for _, addr := range []*string{&s.grpc, &s.http} {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		*addr = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	s.http = "http://" + s.http
	return s, nil
}

// start starts the server, waits until it is ready, and returns how long that took.
func (s *server) start(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _ = log.Close() }() // the child has its own
	s.cmd = exec.Command(s.binary, "dev", "--data-dir", s.dataDir, "--grpc-addr", s.grpc, "--http-addr",
		s.http[len("http://"):],
		"--worker-roots", s.repo, "--worker-unconfined", "--worker-capacity", "6", "--log-level", "warn")
	s.cmd.Stderr, s.cmd.Stdout = log, log
	if err := s.cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w (make build makes it)", s.binary, err)
	}
	s.ended = make(chan struct{})
	cmd, ended := s.cmd, s.ended
	go func() {
		_ = cmd.Wait() // a killed server ends with an error, as it should
		close(ended)
	}()
	for {
		if ready(ctx, s.http) {
			return time.Since(began), nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-s.ended:
			tail, _ := os.ReadFile(s.log)
			return 0, fmt.Errorf("the server ended before it was ready:\n%s", tail[max(0, len(tail)-2000):])
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func ready(ctx context.Context, base string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// kill sends SIGKILL, so that no handler runs and nothing is flushed, and waits until the process
// has ended.
func (s *server) kill() error {
	if err := s.cmd.Process.Kill(); err != nil {
		return err
	}
	<-s.ended
	return nil
}

// stop stops the server with SIGINT, and kills it if that takes too long.
func (s *server) stop() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Signal(os.Interrupt)
	select {
	case <-s.ended:
	case <-time.After(15 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// approve sends the approval to the trigger URL, as the outside system does.
func approve(url string) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url,
		bytes.NewBufferString(`{"approved":true,"by":"the release board"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	_, err = os.Stdout.Write(body)
	return err
}
