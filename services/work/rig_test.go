package work

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/clock"
	"quartet/pkg/fault"
	"quartet/pkg/id"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	"quartet/pkg/page"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var registry = journal.NewRegistry(workv1.File_quartet_work_v1_work_event_proto)

// rig is the plane over memory, reached through the network.
type rig struct {
	t        *testing.T
	ctx      context.Context //nolint:containedctx // the caller of every call that names no other
	clk      *clock.Fake
	ids      *id.Sequence
	journals *planetest.Journals
	room     *framelog.Room // of the store of the journals; nil: there is room for everything
	home     string
	tasks    runningTasks
	agents   known
	service  *Service
	net      *planetest.Net
	client   workv1.WorkServiceClient
	down     func()
}

type runningTasks struct {
	mu   sync.Mutex
	list []RunningTask
}

func (r *runningTasks) set(list ...RunningTask) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = list
}

func (r *runningTasks) RunningTasks(context.Context, string, string) ([]RunningTask, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list, nil
}

// known are the agents that exist, and for false those that are deleted.
type known map[string]bool

func (k known) AgentExists(_ context.Context, agentID string) error {
	if alive, made := k[agentID]; alive {
		return nil
	} else if made {
		return fault.AgentDeleted.Newf("agent %q is deleted", agentID)
	}
	return fault.NotFound.Newf("agent %q does not exist", agentID)
}

func newRig(t *testing.T) *rig {
	r := openRig(t)
	t.Cleanup(func() {
		r.down()
		checkPages(t, r.events())
	})
	return r
}

// openRig is for tests that close the rig themselves.
func openRig(t *testing.T) *rig {
	r := &rig{
		t: t, clk: clock.NewFake(epoch), ids: &id.Sequence{}, journals: planetest.NewJournals(), home: t.TempDir(),
		ctx: planetest.AsAgent(t.Context(), "keeper"), room: &framelog.Room{},
		agents: known{"keeper": true, "other": true, strings.Repeat("a", 127): true, strings.Repeat("a", 128): true},
	}
	r.up()
	return r
}

func (r *rig) up() {
	r.service = must.Value(New(Config{Home: r.home}, Deps{Tasks: &r.tasks, Agents: r.agents, Deps: plane.Deps{
		Log: r.journals.Log, Sources: r.journals.Sources, Clock: r.clk, IDs: r.ids, Room: r.room,
	}}))(r.t)
	planetest.Start(r.t, r.service)
	r.net = planetest.NewNet(r.t)
	stop := r.net.Serve("work", func(reg grpc.ServiceRegistrar) { r.service.Register(reg) })
	r.client = workv1.NewWorkServiceClient(must.Value(r.conn())(r.t))
	r.down = func() {
		planetest.Stop(r.t, r.service)
		stop()
	}
}

func (r *rig) conn() (grpc.ClientConnInterface, error) { return r.net.Conn(Plane) }

// restart makes the service anew over the same journal.
func (r *rig) restart() {
	r.down()
	r.up()
}

func (r *rig) events() []*journal.Event { return r.journals.Events(r.t, Plane, registry) }

// create creates an item of keeper.
func (r *rig) create(objective string) *workv1.WorkItem {
	r.t.Helper()
	resp, err := r.client.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{AgentId: "keeper", Objective: objective})
	require.NoError(r.t, err)
	return resp.GetWorkItem()
}

func (r *rig) get(itemID string) *workv1.WorkItem {
	r.t.Helper()
	resp, err := r.client.GetWorkItem(r.ctx, &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: itemID})
	require.NoError(r.t, err)
	return resp.GetWorkItem()
}

func (r *rig) pick(itemID string) {
	r.t.Helper()
	must.Value(r.client.PickWorkItem(r.ctx, &workv1.PickWorkItemRequest{
		AgentId: "keeper", WorkItemId: itemID, Reason: "test",
	}))(r.t)
}

// hear applies another plane's event by the plane's own rule, as consuming it would.
func (r *rig) hear(ev *journal.Event) {
	r.t.Helper()
	planetest.React(r.t, r.service.engine, ev, react)
}

// replayed reports whether a call was answered from memory.
func replayed(call func(opts ...grpc.CallOption) error) (bool, error) {
	var header metadata.MD
	err := call(grpc.Header(&header))
	return rpc.WasReplayed(header), err
}

// look reads the state itself.
func (r *rig) look(read func(s *State)) error {
	_, _, err := journal.View(context.Background(), r.service.engine.All()[0], func(s *State) (struct{}, error) {
		read(s)
		return struct{}{}, nil
	})
	return err
}

// token returns a page token of an item's history.
func token(itemID, at string) string {
	return page.Token("work-item-history/"+itemID+"/false", at)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
