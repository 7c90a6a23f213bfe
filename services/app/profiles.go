package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// profiles is the module that serves CPU and memory profiles on a port of its own. The
// address must be loopback, because profiles contain data of the process.
type profiles struct {
	addr   string
	server *http.Server
}

// Name implements life.Service.
func (p *profiles) Name() string { return "profiles" }

// Start listens on the address, which must be loopback, and serves.
func (p *profiles) Start(ctx context.Context) error {
	if err := loopback("pprof-addr", p.addr); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.addr)
	if err != nil {
		return fmt.Errorf("pprof-addr %s: %w", p.addr, err)
	}
	p.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = p.server.Serve(lis) }() // ends with the server
	return nil
}

// Stop closes the port.
func (p *profiles) Stop(context.Context) error { return p.server.Close() }

// Ready implements life.Service.
func (p *profiles) Ready() error { return nil }

// loopback returns an error if other machines can reach addr, the value of a setting. A
// host name other than localhost counts as reachable.
func loopback(setting, addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%s %q: %w", setting, addr, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return errors.New(setting + " " + addr + " is reachable from other machines, and it demands no credential; " +
			"use 127.0.0.1")
	}
	return nil
}
