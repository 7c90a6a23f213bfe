package workerstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stream is a worker's stream without a network.
type stream struct {
	grpc.ServerStream
	ctx    context.Context //nolint:containedctx // a stream has a context
	in     chan string
	out    chan string
	header chan struct{} // closed by SendHeader
	// open reports whether the session accepts work; SendHeader fails if it does not.
	open func() bool
}

func newStream(t *testing.T) *stream {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return &stream{ctx: ctx, in: make(chan string), out: make(chan string, 100), header: make(chan struct{})}
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) SendHeader(metadata.MD) error {
	if !s.open() {
		return errors.New("a worker that has the header is ready, so it must be among those that accept work")
	}
	close(s.header)
	return nil
}

func (s *stream) Send(m *string) error {
	s.out <- *m
	return nil
}

func (s *stream) Recv() (*string, error) {
	select {
	case m, open := <-s.in:
		if !open {
			return nil, io.EOF
		}
		return &m, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// handler records what Serve calls.
type handler struct {
	session  *Session[string]
	received chan string
	closed   chan struct{}
	refuse   error
}

func (h *handler) Welcome() error {
	welcome := "welcome"
	h.session.Send(&welcome)
	return nil
}

func (h *handler) Receive(m *string) error {
	h.received <- *m
	return h.refuse
}

func (h *handler) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (h *handler) Close() { close(h.closed) }

// connection is a worker that Serve serves in the background.
type connection struct {
	*handler
	stream *stream
	ended  chan error
}

var errStopped = errors.New("stopped")

func connect(t *testing.T, r *Registry[string], stopping chan struct{}, worker, boot string) *connection {
	s := newStream(t)
	s.open = func() bool {
		return slices.ContainsFunc(r.Open(), func(o *Session[string]) bool { return o.Key.ID == worker })
	}
	h := &handler{
		session: NewSession[string](s.ctx, plane.KeyOf("acme", worker),
			Hello{WorkerID: worker, BootID: boot, Capacity: 2, Pools: []string{"go"}}, time.Now(), nil),
		received: make(chan string, 10), closed: make(chan struct{}),
	}
	c := &connection{handler: h, stream: s, ended: make(chan error, 1)}
	go func() { c.ended <- Serve[string, string](s, r, h.session, h, stopping, errStopped) }()
	return c
}

func (c *connection) await(t *testing.T) {
	select {
	case <-c.stream.header:
	case err := <-c.ended:
		require.FailNow(t, "the session ended", "%v", err)
	}
}

func TestASessionFromHelloToEOF(t *testing.T) {
	r := NewRegistry[string](false)
	c := connect(t, r, nil, "w1", "b1")
	c.await(t)
	require.Equal(t, "welcome", <-c.stream.out)
	for i := range 3 {
		c.stream.in <- fmt.Sprint(i)
		require.Equal(t, fmt.Sprint(i), <-c.received)
	}
	require.Same(t, c.session, r.Find(plane.KeyOf("acme", "w1")))
	require.Len(t, r.Open(), 1)
	r.Close(c.session)
	require.Empty(t, r.Open())
	close(c.stream.in)
	require.NoError(t, <-c.ended)
	<-c.closed
	require.Nil(t, r.Find(plane.KeyOf("acme", "w1")))
}

func TestANewerStreamReplacesTheOlderOne(t *testing.T) {
	r := NewRegistry[string](true)
	first := connect(t, r, nil, "w1", "b1")
	first.await(t)
	second := connect(t, r, nil, "w1", "b2")
	second.await(t)
	require.ErrorIs(t, <-first.ended, fault.Cancelled)
	require.Same(t, second.session, r.Find(plane.KeyOf("acme", "w1")))
	require.ErrorIs(t, <-connect(t, r, nil, "w1", "b1").ended, fault.AlreadyExists,
		"a replaced process does not come back")
	close(second.stream.in)
	require.NoError(t, <-second.ended)
}

// TestG11_ReplacedProcessesAreBounded replaces a process of more workers than are remembered: the newest are refused,
// and those of another namespace too.
func TestG11_ReplacedProcessesAreBounded(t *testing.T) {
	r := NewRegistry[string](true)
	join := func(namespace string, n int, boot string) error {
		worker := fmt.Sprint("w", n)
		return r.join(NewSession[string](t.Context(), plane.KeyOf(namespace, worker),
			Hello{WorkerID: worker, BootID: boot}, time.Time{}, nil))
	}
	replace := func(namespace string, n int) {
		require.NoError(t, join(namespace, n, "a"))
		require.NoError(t, join(namespace, n, "b"))
	}
	replace("zeta", 0)
	const more = 10
	for n := range maxReplaced + more {
		replace("acme", n)
	}
	refused := 0
	for n := maxReplaced + more - 1; n >= 0; n-- { // the newest first: those that are accepted replace others
		if err := join("acme", n, "a"); err != nil {
			require.ErrorIs(t, err, fault.AlreadyExists)
			refused++
		}
	}
	require.Equal(t, maxReplaced, refused)
	require.ErrorIs(t, join("zeta", 0, "a"), fault.AlreadyExists)
	require.Len(t, r.replaced["acme"].known, maxReplaced)
	require.Len(t, r.replaced["acme"].order, maxReplaced)
}

func TestARefusedMessageAndAStopEndTheSession(t *testing.T) {
	r := NewRegistry[string](false)
	c := connect(t, r, nil, "w1", "b1")
	c.refuse = fault.Overloaded.New("too many")
	c.await(t)
	c.stream.in <- "one"
	require.ErrorIs(t, <-c.ended, fault.Overloaded)

	stopping := make(chan struct{})
	c = connect(t, r, stopping, "w1", "b1")
	c.await(t)
	close(stopping)
	require.ErrorIs(t, <-c.ended, errStopped)
}

func TestReservationsAndAssignments(t *testing.T) {
	r := NewRegistry[string](false)
	c := connect(t, r, nil, "w1", "b1")
	c.await(t)
	defer func() {
		close(c.stream.in)
		<-c.ended
	}()
	must.Refuse(r.Reserve("acme", "go", "w9"))(t, fault.NotFound)
	must.Refuse(r.Reserve("acme", "gpu", "w1"))(t, fault.NotFound)
	must.Refuse(r.Reserve("beta", "go", ""))(t, fault.WorkerPoolBusy, "another namespace's worker")

	v := must.Value(r.Reserve("acme", "go", ""))(t)
	require.True(t, v.Assign("run_1"))
	require.Same(t, c.session, r.Holder("acme", "run_1"))
	v = must.Value(r.Reserve("acme", "go", "w1"))(t)
	require.Zero(t, r.Room(c.session))
	must.Refuse(r.Reserve("acme", "go", "w1"))(t, fault.WorkerBusy)
	must.Refuse(r.Reserve("acme", "go", ""))(t, fault.WorkerPoolBusy)
	require.False(t, v.Assign("run_1"), "it has that one already")
	require.Equal(t, 1, r.Room(c.session))
	v = must.Value(r.Reserve("acme", "go", ""))(t)
	v.Cancel()

	r.Assign(c.session, "run_2")
	require.Equal(t, []string{"run_1", "run_2"}, r.Assigned(c.session))
	r.Release("acme", "run_1", "run_2", "run_9")
	require.Equal(t, 2, r.Room(c.session))
	require.Nil(t, r.Holder("acme", "run_1"))
}

func TestMergedMessages(t *testing.T) {
	s := NewSession(context.Background(), plane.KeyOf("acme", "w1"), Hello{}, time.Now(), func(last, m *string) bool {
		if len(*last)+len(*m) > 3 {
			return false
		}
		*last += *m
		return true
	})
	for _, m := range []string{"a", "b", "c", "d"} {
		s.Send(&m)
	}
	var got []string
	for _, m := range s.take() {
		got = append(got, *m)
	}
	require.Equal(t, []string{"abc", "d"}, got)
}

// TestReceiveHello sends a hello as callers of several roles, another first message, a hello
// that breaks a rule, and nothing.
func TestReceiveHello(t *testing.T) {
	rules := HelloRules{MinCapacity: 1, PoolsField: "pools", HeldField: "tasks", LabelLimit: MaxLabels}
	receive := func(role string, held int, messages ...string) (*string, *Hello, error) {
		st := newStream(t)
		st.ctx = rpc.WithActor(st.ctx, rpc.Actor{Namespace: "acme", Principal: "p", Role: role})
		go func() {
			for _, m := range messages {
				st.in <- m
			}
			close(st.in)
		}()
		return ReceiveHello(st, rules, func(m *string) *Hello {
			if *m != "hello" {
				return nil
			}
			return &Hello{WorkerID: "w", BootID: "b", Capacity: 1, Held: make([]string, held)}
		})
	}
	for _, role := range []string{rpc.RoleWorker, rpc.RoleAdmin, rpc.RoleService} {
		first, hello, err := receive(role, MaxHeld, "hello")
		require.NoError(t, err)
		require.Equal(t, "hello", *first)
		require.Equal(t, "w", hello.WorkerID)
	}
	_, _, err := receive(rpc.RoleWorker, 0, "report")
	require.ErrorIs(t, err, fault.InvalidArgument)
	_, _, err = receive(rpc.RoleWorker, MaxHeld+1, "hello")
	require.ErrorContains(t, err, "hello.tasks")
	_, _, err = receive(rpc.RoleWorker, 0)
	require.ErrorIs(t, err, io.EOF)
}

func TestHelloCheck(t *testing.T) {
	rules := HelloRules{
		MinCapacity: 1, NeedsPool: true, PoolsField: "pools", HeldField: "tasks", LabelLimit: MaxLabels,
		CheckLabels: true,
	}
	good := func() Hello {
		return Hello{WorkerID: "w", BootID: "b", Capacity: 1, Pools: []string{"go"}, Labels: map[string]string{
			"os": "linux",
		}}
	}
	require.NoError(t, good().Check(rules))
	for name, spoil := range map[string]func(*Hello){
		"no id": func(h *Hello) { h.WorkerID = "" }, "a bad id": func(h *Hello) { h.WorkerID = "W!" },
		"no boot id":  func(h *Hello) { h.BootID = "" },
		"no capacity": func(h *Hello) { h.Capacity = 0 }, "too much": func(h *Hello) { h.Capacity = MaxCapacity + 1 },
		"no pool": func(h *Hello) { h.Pools = nil }, "a bad pool": func(h *Hello) { h.Pools = []string{""} },
		"too many pools": func(h *Hello) { h.Pools = make([]string, MaxPools+1) }, "too many held": func(h *Hello) {
			h.Held = make([]string, MaxHeld+1)
		},
		"a bad label": func(h *Hello) { h.Labels = map[string]string{"": "x"} },
	} {
		h := good()
		spoil(&h)
		require.Error(t, h.Check(rules), name)
	}
	require.Error(t, SecondHello())
}
