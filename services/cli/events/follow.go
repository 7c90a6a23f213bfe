package events

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/session"
)

// Bounds of the time between two attempts to connect again. The first attempts
// are fast for people; the later ones do not load a server that is starting.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 5 * time.Second
)

// Follower streams events. When the connection is lost it connects again, for as
// long as the server is unreachable, and continues after the last event.
type Follower struct {
	Cmd  *cobra.Command // on whose stderr lost and new connections are reported
	Conn *grpc.ClientConn
	// Request is what to follow. Run moves its cursor.
	Request *eventv1.WatchEventsRequest
	// Receive is called with every message, including heartbeats. An error that it
	// returns ends Run.
	Receive func(*eventv1.WatchEventsResponse) error
	// Reconnected, if set, is called after the connection was made again.
	Reconnected func() error

	received bool // a message was received, so the request is valid and its cursor known
	lost     bool // the connection was lost and that was reported
}

// receiveError is an error of Receive, as opposed to one of the connection.
type receiveError struct{ error }

// Run follows the events until ctx or the stream ends, which is no error. It returns an error of
// Receive, an error that repeating the request cannot fix, and any error before the first message.
func (f *Follower) Run(ctx context.Context) error {
	client, wait := eventv1.NewEventServiceClient(f.Conn), minRetry
	for {
		err := f.receive(ctx, client, func() { wait = minRetry })
		var received receiveError
		switch {
		case errors.As(err, &received):
			return received.error
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return nil //nolint:nilerr // an interrupt or --timeout is the regular end of a follower
		case !f.received || !Temporary(err):
			return err
		}
		if !f.lost {
			f.lost = true
			f.Cmd.PrintErrf("connection lost; trying to continue after the last event: %s\n",
				terminal.Printable(fault.From(err).Message()))
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		wait = min(2*wait, maxRetry)
		f.Conn.ResetConnectBackoff() // this loop has a backoff of its own
	}
}

// Temporary reports whether a request that failed with err may succeed later.
func Temporary(err error) bool {
	switch fault.From(err).Code() {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	}
	return false
}

// receive opens one stream and passes its messages to Receive until it ends. It
// calls alive for each message.
func (f *Follower) receive(ctx context.Context, client eventv1.EventServiceClient, alive func()) error {
	stream, err := client.WatchEvents(ctx, f.Request)
	if err != nil {
		return err
	}
	return session.Receive(stream, func(resp *eventv1.WatchEventsResponse) error {
		f.received = true
		alive()
		if f.lost {
			f.lost = false
			f.Cmd.PrintErrf("connected again\n")
			if f.Reconnected != nil {
				if err := f.Reconnected(); err != nil {
					return err
				}
			}
		}
		if err := f.Receive(resp); err != nil {
			return receiveError{err}
		}
		cursor := resp.GetHeartbeatCursor()
		if ev := resp.GetEvent(); ev != nil {
			cursor = ev.GetCursor()
		}
		f.Request.Cursor, f.Request.FromStart = cursor, false
		return nil
	})
}
