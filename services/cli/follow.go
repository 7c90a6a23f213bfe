package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
)

// Between two attempts to connect again. The first comes at once to people,
// the last does not load a server that starts.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// follower streams events, and goes on from the last cursor when the connection
// is lost, for as long as the server is away.
type follower struct {
	cmd  *cobra.Command
	conn *grpc.ClientConn
	req  *eventv1.WatchEventsRequest
	// take gets every message, also heartbeats. Its error ends the stream.
	take func(*eventv1.WatchEventsResponse) error
	// back, if set, is told that the connection is there again.
	back func() error

	began bool // something came: the request is good, and a cursor is known
	lost  bool
}

// errTaken carries an error of take past the judgement of the connection's.
type errTaken struct{ error }

// timed ends ctx after d, if d is set. An end by it is no failure. It is no
// deadline: the server would be told that one and might end the stream first.
func timed(cmd *cobra.Command, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(cmd.Context())
	if d <= 0 {
		return ctx, cancel
	}
	limit := time.AfterFunc(d, cancel)
	return ctx, func() {
		limit.Stop()
		cancel()
	}
}

// run ends with ctx, with the stream's own end, or with an error that asking
// again does not mend.
func (f *follower) run(ctx context.Context) error {
	client, wait := eventv1.NewEventServiceClient(f.conn), firstRetry
	for {
		err := f.receive(ctx, client, func() { wait = firstRetry })
		var own errTaken
		switch {
		case errors.As(err, &own):
			return own.error
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return nil //nolint:nilerr // interrupted, or its time is over: how a follower is ended
		case !f.began || !passing(err):
			return err
		}
		if !f.lost {
			f.lost = true
			f.cmd.PrintErrf("connection lost; trying to go on from the last event: %s\n", printable(fault.From(err).Message()))
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		wait = min(2*wait, lastRetry)
		f.conn.ResetConnectBackoff() // this loop has its own
	}
}

// passing says whether an error may go by itself.
func passing(err error) bool {
	switch fault.From(err).Code() {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	}
	return false
}

func (f *follower) receive(ctx context.Context, client eventv1.EventServiceClient, alive func()) error {
	stream, err := client.WatchEvents(ctx, f.req)
	if err != nil {
		return err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.began = true
		alive()
		if f.lost {
			f.lost = false
			f.cmd.PrintErrf("connected again\n")
			if f.back != nil {
				if err := f.back(); err != nil {
					return err
				}
			}
		}
		if err := f.take(resp); err != nil {
			return errTaken{err}
		}
		cursor := resp.GetHeartbeatCursor()
		if ev := resp.GetEvent(); ev != nil {
			cursor = ev.GetCursor()
		}
		f.req.Cursor, f.req.FromStart = cursor, false
	}
}
