// Package planetest runs planes in memory for their tests: journals that all planes of a test
// share, planes whose events the test writes, the network between them, and transcripts of calls
// and events.
package planetest

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// Journals are the logs of all planes of a test. They outlive the services that write them, so a
// new service over them behaves like a restarted one.
type Journals struct {
	// Wrap, if set, wraps the log of a plane, to inject faults.
	Wrap func(plane string, log framelog.Log) framelog.Log

	mu   sync.Mutex
	logs map[string]*journaltest.MemLog
	gone map[string]map[uint64]bool // what Forget removed, by plane
}

// NewJournals returns Journals with empty logs.
func NewJournals() *Journals { return &Journals{logs: map[string]*journaltest.MemLog{}} }

func (j *Journals) log(plane string, partition int) *journaltest.MemLog {
	j.mu.Lock()
	defer j.mu.Unlock()
	name := plane + "/" + strconv.Itoa(partition)
	if j.logs[name] == nil {
		j.logs[name] = journaltest.NewMemLog()
	}
	return j.logs[name]
}

// Log opens a log; it is plane.Deps.Log.
func (j *Journals) Log(plane string, partition int) (framelog.Log, error) {
	l := framelog.Log(j.log(plane, partition))
	if partition == 0 {
		l = removing{j.log(plane, partition), j, plane}
	}
	if j.Wrap != nil {
		l = j.Wrap(plane, l)
	}
	return l, nil
}

// Sources returns the first partition of a plane; it is plane.Deps.Sources.
func (j *Journals) Sources(plane string) ([]journal.Source, error) {
	return []journal.Source{journal.NewSource(plane, 0, j.log(plane, 0))}, nil
}

// Events returns the events of a plane's first partition, without those of the journal itself.
func (j *Journals) Events(t *testing.T, plane string, reg *journal.Registry) []*journal.Event {
	t.Helper()
	return must.Value(j.Read(plane, reg))(t)
}

// Read is Events for a caller without a testing.T.
func (j *Journals) Read(plane string, reg *journal.Registry) (events []*journal.Event, err error) {
	err = j.log(plane, 0).Scan(context.Background(), 0, func(_ uint64, f framelog.Frame) error {
		for _, line := range framelog.SplitLines(f.Body) {
			raw, err := journal.ParseLine(line)
			if err != nil {
				return err
			}
			if journal.Internal(raw.Type) {
				continue
			}
			ev, err := raw.Decode(reg)
			if err != nil {
				return err
			}
			events = append(events, ev)
		}
		return nil
	})
	return events, err
}

// Types returns the type of each event, in order.
func Types(events []*journal.Event) []string {
	types := make([]string, len(events))
	for i, ev := range events {
		types[i] = ev.Type
	}
	return types
}

// Writer writes the journal of a plane in place of the plane. Other planes follow it like the
// journal of the real one.
type Writer struct {
	t    *testing.T
	part *journal.Partition[nothing]
}

type nothing struct{}

func (nothing) Apply(*journal.Event) error { return nil }

// NewWriter opens the journal of a plane for the events of a test.
func (j *Journals) NewWriter(t *testing.T, plane string, events protoreflect.FileDescriptor) *Writer {
	t.Helper()
	part := must.Value(journal.Open(context.Background(), journal.Config[nothing]{
		Log: j.log(plane, 0), Plane: plane, New: func() nothing { return nothing{} },
		Registry: journal.NewRegistry(events), NewID: id.New().New,
	}))(t)
	t.Cleanup(func() { require.NoError(t, part.Close(context.Background())) })
	return &Writer{t, part}
}

// Write commits events in one frame, as a service of namespace acme.
func (w *Writer) Write(events ...*journal.Event) {
	w.t.Helper()
	w.WriteAs(journal.Actor{Namespace: "acme", Principal: "test", Role: rpc.RoleService}, events...)
}

// WriteAs commits events in one frame, as an actor.
func (w *Writer) WriteAs(actor journal.Actor, events ...*journal.Event) {
	w.t.Helper()
	_, _, err := journal.Do(context.Background(), w.part, journal.Op[nothing, struct{}]{
		Method: "write", Actor: actor,
		Decide: func(nothing, journal.Env) (journal.Decision[struct{}], error) {
			return journal.Decision[struct{}]{Events: events}, nil
		},
	})
	require.NoError(w.t, err)
}

// Net is a network whose servers accept the actor of the caller's context.
type Net struct {
	t       *testing.T
	network *rpc.Network
	keys    *rpc.Keyring
}

// NewNet returns a network that ends with the test.
func NewNet(t *testing.T) *Net {
	keys := rpc.NewKeyring(nil, false)
	n := &Net{
		t: t, keys: keys, network: rpc.NewNetwork(rpc.NetworkConfig{Service: "test", Token: keys.MintService("test")}),
	}
	t.Cleanup(func() { require.NoError(t, n.network.Close()) })
	return n
}

// Serve serves a plane under its name until the returned function is called.
func (n *Net) Serve(name string, register func(grpc.ServiceRegistrar)) (stop func()) {
	n.t.Helper()
	srv := rpc.NewServer(rpc.Config{Auth: n.keys})
	register(srv)
	require.NoError(n.t, n.network.Listen(name, srv))
	return srv.Stop
}

// Conn returns the connection to a plane.
func (n *Net) Conn(name string) (grpc.ClientConnInterface, error) { return n.network.Dial(name) }

// As makes calls under ctx act in namespace acme.
func As(ctx context.Context, role string) context.Context {
	return rpc.WithActor(ctx, rpc.Actor{Namespace: "acme", Principal: role, Role: role})
}

// AsAgent makes calls under ctx act as an agent of namespace acme.
func AsAgent(ctx context.Context, agentID string) context.Context {
	return rpc.WithActor(ctx, rpc.Actor{
		Namespace: "acme", Principal: "agent/" + agentID, Role: rpc.RoleAgent,
		AgentID: agentID,
	})
}

// Service is a plane's service as a test starts and stops it.
type Service interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Ready() error
}

// Start starts a service, which is ready after that and not before.
func Start(t testing.TB, s Service) {
	t.Helper()
	require.ErrorContains(t, s.Ready(), "not started")
	require.NoError(t, s.Start(context.Background()))
	require.NoError(t, s.Ready())
}

// Stop stops a service twice, because a stop is idempotent.
func Stop(t testing.TB, s Service) {
	t.Helper()
	require.NoError(t, s.Stop(context.Background()))
	require.NoError(t, s.Stop(context.Background()))
}

// React applies an event of another plane by the rule with which the plane consumes it.
func React[S journal.State](t testing.TB, e *plane.Engine[S], ev *journal.Event,
	react func(S, journal.Env, *journal.Event) ([]*journal.Event, error),
) {
	t.Helper()
	must.Value(plane.Do(context.Background(), e, plane.Command[S, struct{}]{
		Method: "react", AgentID: ev.AgentID, Actor: plane.System(ev.Namespace),
		Decide: func(st S, env journal.Env) (journal.Decision[struct{}], error) {
			events, err := react(st, env, ev)
			return journal.Decision[struct{}]{Events: events}, err
		},
	}))(t)
}
