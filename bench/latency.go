package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

// The names of the figures.
const (
	nameMessage = "trigger POST → turn held (message)"
	nameHint    = "trigger POST → turn held (wake hint)"
	nameWay     = "the same way with nothing behind it"
	// answered ends the names of the figures for the time after the response to the delivery.
	answered = ", from the answer to the POST"
)

// triggers is the number of deliveries of a latency figure.
const triggers = 300

// way is a path from a POST of an outside system to a runner that waits for a turn, with its measurements.
type way struct {
	row
	agents agentv1.AgentServiceClient
	url    string
	took   []time.Duration // from the POST
	after  []time.Duration // from the response to the POST, which says that it is delivered
}

// measureLatency measures, on an idle system, the time from a POST of an outside system to the
// runner that holds the turn, and the part of it after the response to the POST. Messages and
// wake hints are measured alternately, one delivery of each at a time. With bare it also measures
// the same calls and disk writes without Quartet.
func measureLatency(ctx context.Context, o options, q *quartet, agentID string, bare bool, say func(row)) error {
	var ways []*way
	for _, k := range []struct {
		name string
		mode waitingv1.DeliveryMode
	}{
		{nameMessage, waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL},
		{nameHint, waitingv1.DeliveryMode_DELIVERY_MODE_WAKE_HINT},
	} {
		if !o.wants(k.name) {
			continue
		}
		tr, err := q.waiting.CreateExternalTrigger(ctx, &waitingv1.CreateExternalTriggerRequest{
			AgentId: agentID, DeliveryMode: k.mode,
		})
		if err != nil {
			return err
		}
		ways = append(ways, &way{
			row: row{name: k.name, note: "target p50 ≤ 3 ms, p99 ≤ 10 ms"}, agents: q.agents,
			url: "http://" + q.app.HTTPAddr() + "/v1/triggers/" + tr.GetToken(),
		})
	}
	if bare && len(ways) > 0 {
		w, stop, err := bareWay(ctx, o)
		if err != nil {
			return err
		}
		defer stop()
		ways = append(ways, w)
	}
	for i := range triggers {
		for _, w := range ways {
			if err := w.deliver(ctx, agentID); err != nil {
				return fmt.Errorf("%s, delivery %d: %w", w.name, i, err)
			}
		}
	}
	for _, w := range ways {
		r, err := w.summary(w.took)
		if err != nil {
			return err
		}
		say(r)
		if w.name == nameWay {
			continue
		}
		if r, err = w.summary(w.after); err != nil {
			return err
		}
		r.name += answered
		say(r)
	}
	return nil
}

func (w *way) summary(took []time.Duration) (row, error) {
	t := turn{took: took, done: len(took)}
	for _, d := range took {
		t.span += d
	}
	r := w.row
	r.callers = 1
	var err error
	r.stats, err = summarise([]turn{t})
	return r, err
}

// deliver sends one POST and waits for the turn that it causes.
func (w *way) deliver(ctx context.Context, agentID string) error {
	type got struct {
		r   *agentv1.AcquireTurnResponse
		at  time.Time
		err error
	}
	held := make(chan got, 1)
	go func() {
		r, err := w.agents.AcquireTurn(ctx, &agentv1.AcquireTurnRequest{
			AgentIds: []string{agentID},
			Wait:     durationpb.New(20 * time.Second),
		})
		held <- got{r, time.Now(), err}
	}()
	<-time.After(20 * time.Millisecond) // the runner waits, the system is idle
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, strings.NewReader(`{"build":"green"}`))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	// The body is read to its end, because the connection is not reused otherwise, and the
	// next delivery would include a new connection.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the trigger answered %s", resp.Status)
	}
	delivered := time.Now()
	g := <-held
	if g.err != nil {
		return g.err
	}
	if g.r.GetPending() {
		return errors.New("no turn within 20 s")
	}
	w.took, w.after = append(w.took, g.at.Sub(began)), append(w.after, max(0, g.at.Sub(delivered)))
	_, err = w.agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{
		AgentId: agentID, TurnId: g.r.GetTurn().GetTurnId(),
		RunId: g.r.GetTurn().GetRunId(),
	})
	return err
}

// bareTurns is an agent service without a journal. It responds with a turn of the usual size when
// ready receives a value.
type bareTurns struct {
	agentv1.UnimplementedAgentServiceServer
	ready chan struct{}
}

func (b bareTurns) AcquireTurn(ctx context.Context, _ *agentv1.AcquireTurnRequest) (*agentv1.AcquireTurnResponse,
	error,
) {
	select {
	case <-b.ready:
		return &agentv1.AcquireTurnResponse{Context: &agentv1.ContextProjection{Text: strings.Repeat("context ", 250)}},
			nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (bareTurns) FinishTurn(context.Context, *agentv1.FinishTurnRequest) (*agentv1.FinishTurnResponse, error) {
	return &agentv1.FinishTurnResponse{}, nil
}

// bareWay returns the least that the same guarantees need: a POST whose body is written to disk before
// the response, a second write for its effect, and the response to a gRPC call that waits.
func bareWay(ctx context.Context, o options) (*way, func(), error) {
	var closers []func()
	stop := func() {
		for _, c := range slices.Backward(closers) {
			c()
		}
	}
	fail := func(err error) (*way, func(), error) {
		stop()
		return nil, nil, err
	}
	var writes []figure
	for _, name := range []string{"delivered", "begun"} {
		at := o
		at.dir = filepath.Join(o.dir, name)
		if err := os.MkdirAll(at.dir, 0o700); err != nil {
			return fail(err)
		}
		f, done, err := fsyncFigure(at)
		if err != nil {
			return fail(err)
		}
		closers = append(closers, done)
		writes = append(writes, f)
	}
	var listeners []net.Listener
	for range 2 {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return fail(err)
		}
		closers = append(closers, func() { _ = l.Close() })
		listeners = append(listeners, l)
	}
	delivered, turns := make(chan struct{}, 1), bareTurns{ready: make(chan struct{}, 1)}
	following, cancel := context.WithCancel(ctx)
	closers = append(closers, cancel)
	go func() {
		for {
			select {
			case <-delivered:
				if writes[1].op(following, 0, 0) == nil {
					turns.ready <- struct{}{}
				}
			case <-following.Done():
				return
			}
		}
	}()
	web := &http.Server{
		ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			if err = errors.Join(err, writes[0].op(r.Context(), 0, 0)); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			delivered <- struct{}{}
			_, _ = io.WriteString(w, `{"outcome":"TRIGGERED"}`)
		}),
	}
	go func() { _ = web.Serve(listeners[0]) }()
	srv := grpc.NewServer()
	agentv1.RegisterAgentServiceServer(srv, turns)
	go func() { _ = srv.Serve(listeners[1]) }()
	closers = append(closers, func() { _ = web.Close() }, srv.Stop)
	conn, err := dial(listeners[1].Addr().String())
	if err != nil {
		return fail(err)
	}
	closers = append(closers, func() { _ = conn.Close() })
	return &way{
		row:    row{name: nameWay, note: "POST, two writes + fsync one after the other, gRPC answer"},
		agents: agentv1.NewAgentServiceClient(conn), url: "http://" + listeners[0].Addr().String(),
	}, stop, nil
}
