// Command release-keeper demonstrates Quartet on a real repository: an agent outside the control
// plane, which uses only the public API, checks every Go package of a git repository. The server
// is killed in the middle, and nothing is lost.
//
//	release-keeper --repo . --exit
//
// It starts a server in a temporary directory, or uses that of --server. The agent has no memory
// of its own: all that it knows in a turn is in the context from the control plane.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"quartet/pkg/client"
)

type options struct {
	repo     string
	binary   string
	dataDir  string
	exit     bool
	noKill   bool
	packages string
	limit    time.Duration
	server   string
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "approve" {
		// The outside system: another process that knows only a URL.
		if err := approve(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "approve:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.repo, "repo", ".", "the git repository to check")
	flag.StringVar(&o.packages, "packages", "./...",
		"which of its packages, as go list takes them, separated by spaces")
	flag.StringVar(&o.binary, "quartet", "bin/quartet", "the quartet binary")
	flag.StringVar(&o.dataDir, "data-dir", "", "where the server keeps its data; empty: a temporary directory, "+
		"removed at the end")
	flag.BoolVar(&o.exit, "exit", false, "stop the server at the end instead of leaving it up")
	flag.BoolVar(&o.noKill, "no-kill", false, "do not kill the server in the middle")
	flag.StringVar(&o.server, "server", "", "the gRPC address of a server that runs, with TLS and the key in "+
		"$QUARTET_TOKEN, and a worker that has the repository; empty: one of its own")
	flag.DurationVar(&o.limit, "limit", 30*time.Minute, "give up after this long")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release-keeper:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	repo, err := filepath.Abs(o.repo)
	if err != nil {
		return err
	}
	pkgs, err := listPackages(ctx, repo, o.packages)
	if err != nil {
		return err
	}
	if o.dataDir == "" {
		if o.dataDir, err = os.MkdirTemp("", "quartet-demo-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(o.dataDir) }()
	}
	t := newTeller(os.Stdout)
	t.title("Quartet: an agent that survives", fmt.Sprintf("%d packages of %s", len(pkgs), repo))

	srv, dial := &server{grpc: o.server, repo: repo}, []client.Option{
		client.WithToken(os.Getenv("QUARTET_TOKEN")),
		client.WithTLS(&tls.Config{MinVersion: tls.VersionTLS12}),
	}
	if o.server != "" {
		o.noKill, o.exit = true, true // it is not ours
	} else {
		if srv, err = newServer(o.binary, o.dataDir, repo); err != nil {
			return err
		}
		defer srv.stop()
		up, err := srv.start(ctx)
		if err != nil {
			return err
		}
		t.say("server", "up after %s at %s, data in %s", up.Round(time.Millisecond), srv.http, o.dataDir)
		dial = nil
	}

	api, err := client.Dial(srv.grpc, dial...)
	if err != nil {
		return err
	}
	defer func() { _ = api.Close() }()
	work, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	s := &show{api: api, srv: srv, tell: t, opts: o, pkgs: pkgs}
	err = s.play(work)
	var failed failedPackages
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("not done after %s; the server's log is %s", o.limit, srv.log)
	case o.exit, err != nil && !errors.As(err, &failed):
		return err
	case err != nil:
		t.say("check", "%v", err)
	}
	t.say("server", "stays up: REST %s/v1/agents/%s   events %s/v1/events?from_start=true", srv.http, agentID, srv.http)
	t.say("server", "look: %s explain %s --address %s   (Ctrl-C ends it)", o.binary, agentID, srv.grpc)
	<-ctx.Done()
	return err
}

// listPackages returns the packages from go list, those with the most test files first: their tests tend to take the
// longest, and begun last they would still run when all others have ended.
func listPackages(ctx context.Context, repo, patterns string) ([]string, error) {
	list := []string{"list", "-f", "{{.ImportPath}} {{len .TestGoFiles}} {{len .XTestGoFiles}}", "--"}
	cmd := exec.CommandContext(ctx, "go", append(list, strings.Fields(patterns)...)...)
	cmd.Dir = repo
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return nil, fmt.Errorf("go list %s in %s: %s", patterns, repo, strings.TrimSpace(string(exit.Stderr)))
		}
		return nil, fmt.Errorf("go list %s in %s: %w", patterns, repo, err)
	}
	var pkgs []string
	tests := map[string]int{}
	for line := range strings.Lines(string(out)) {
		var path string
		var inside, outside int
		if _, err := fmt.Sscan(line, &path, &inside, &outside); err != nil {
			return nil, fmt.Errorf("go list says %q: %w", line, err)
		}
		pkgs = append(pkgs, path)
		tests[path] = inside + outside
	}
	if len(pkgs) == 0 {
		return nil, fmt.Errorf("go list %s finds no package in %s", patterns, repo)
	}
	slices.SortStableFunc(pkgs, func(a, b string) int { return tests[b] - tests[a] })
	return pkgs, nil
}
