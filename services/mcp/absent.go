package mcp

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	"quartet/pkg/client"
	"quartet/pkg/fault"
)

// errAbsent is the cause of an error which says that no server can be reached, unlike one of a server that
// is not ready.
var errAbsent = errors.New("no server can be reached")

// persist repeats a call while its error is transient, as client.Again does. In a session over stdio it
// gives up once no server could be reached for Config.Absence, or one has answered for Config.Starting
// that it is not ready: coding agents give up on a call after a minute, and their models then learn
// nothing. An error other than UNAVAILABLE begins both times anew. Over HTTP there is no such limit: the
// server that might be absent is the one that serves the request.
func persist[R any](ctx context.Context, a *agentServer, call func(context.Context) (R, error)) (R, error) {
	if !a.stdio {
		return client.Again(ctx, call)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var absent, unready time.Time // since when; zero: it is not so
	return client.Again(ctx, func(one context.Context) (R, error) {
		r, err := call(one)
		switch now := time.Now(); {
		case err == nil || ctx.Err() != nil:
		case fault.From(err).Code() != codes.Unavailable:
			absent, unready = time.Time{}, time.Time{}
		case errors.Unwrap(fault.From(err)) == nil: // a server has answered
			absent = time.Time{}
			if unready.IsZero() {
				unready = now
			}
			if now.Sub(unready) >= a.cfg.Starting {
				giveUp(err)
			}
		default:
			if absent.IsZero() {
				absent = now
			}
			if now.Sub(absent) >= a.cfg.Absence {
				giveUp(a.unreachable())
			}
		}
		return r, err
	})
}

// unreachable returns the error of a call for which no server can be reached.
func (a *agentServer) unreachable() error {
	return fault.NotReady.New("no server answers" + atAddress(a.address)).WithCause(errAbsent)
}

// absence returns the text which says that no server could be reached and how to start one.
func (o serverOptions) absence() string {
	return "No Quartet server answers" + atAddress(o.address) + ". " + o.start()
}

// start returns the text which says how to start a server, or where one runs.
func (o serverOptions) start() string {
	if o.elsewhere != "" {
		return "One of this user runs at " + o.elsewhere + ": have quartet mcp use it with --address " + o.elsewhere +
			" (quartet setup TOOL --address " + o.elsewhere + " enters that)."
	}
	command := client.StartCommand(o.address)
	switch {
	case command == "" && o.address != "":
		return "It is not on this machine: start it there, or give quartet mcp another --address."
	case command == "":
		command = "quartet dev"
	}
	return "Start one on this machine with: " + command + " --data-dir DIRECTORY (without --data-dir it stores in " +
		"~/.quartet)."
}

// atAddress returns " at address", or "" for none.
func atAddress(address string) string {
	if address == "" {
		return ""
	}
	return " at " + address
}
