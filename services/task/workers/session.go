package workers

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/workerstream"
	"quartet/services/task/model"
	"quartet/services/task/rules"
)

// helloRules say what the task plane requires of a worker's hello.
var helloRules = workerstream.HelloRules{
	PoolsField: "pools", HeldField: "running_task_ids",
	LabelLimit: workerstream.MaxLabels, CheckLabels: true,
}

// Connect holds a worker's stream until it ends (SPEC T4). A worker with a
// tenant's credential takes commands of its namespace, one with a service's
// credential those of all namespaces.
func (h *Hub) Connect(stream grpc.BidiStreamingServer[taskv1.ConnectRequest, taskv1.ConnectResponse]) error {
	first, hello, err := workerstream.ReceiveHello(stream, helloRules, helloOf)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	actor := plane.Recorded(rpc.ActorFrom(ctx))
	key := workerstream.Key{Namespace: actor.Namespace, ID: hello.WorkerID}
	if actor.Role == rpc.RoleService {
		key.Namespace = ""
	}
	s := &session{
		Session: workerstream.NewSession[taskv1.ConnectResponse](ctx, key, *hello, h.cfg.Clock.Now(), nil),
		hub:     h, actor: actor, reports: make(map[string][]*taskv1.ConnectRequest),
	}
	if first.GetHello().GetWorktrees() {
		h.orders.register(s.Session)
		defer h.orders.unregister(s.Session)
	}
	stopping := fault.NotReady.New("the task service is stopping; connect again")
	return workerstream.Serve(stream, h.registry, s.Session, s, h.ctx.Done(), stopping)
}

// helloOf returns what a message says of a worker, or nil if it is not a hello.
func helloOf(m *taskv1.ConnectRequest) *workerstream.Hello {
	h := m.GetHello()
	if h == nil {
		return nil
	}
	return &workerstream.Hello{
		WorkerID: h.GetWorkerId(), BootID: h.GetBootId(), Capacity: int(h.GetCapacity()), Pools: h.GetPools(),
		Labels: h.GetLabels(), Held: h.GetRunningTaskIds(),
	}
}

// session is one stream of one worker. Reports of one command are handled in
// order, and those of different commands concurrently, so that a slow append
// delays its own command only.
type session struct {
	*workerstream.Session[taskv1.ConnectResponse]
	hub   *Hub
	actor journal.Actor

	mu sync.Mutex
	// reports are those that wait to be handled, by task id. A task has an entry
	// while a goroutine handles its reports.
	reports  map[string][]*taskv1.ConnectRequest
	closed   bool
	handling sync.WaitGroup
}

// worker returns the key of the session's worker.
func (s *session) worker() model.WorkerKey { return s.Key }

// Welcome reconciles what the journal and a worker that connects say the worker
// holds. Commands of an earlier process of the worker, and stopped ones that the
// worker did not get, end at once, unless it says that it holds them; leases,
// stops and input that it did not get are sent again; and it is instructed to kill
// commands that are not its own any more.
func (s *session) Welcome() error {
	held, err := s.held()
	if err != nil {
		return err
	}
	for _, t := range held {
		c := s.hub.command(t.Task.GetTaskId())
		if c == nil {
			continue // it ended meanwhile
		}
		var end rules.End
		switch {
		case slices.Contains(s.Hello.Held, t.Task.GetTaskId()):
			s.resend(c, t)
			continue
		case t.Task.GetWorkerBootId() != s.Hello.BootID:
			end = rules.End{Reason: rules.ReasonWorkerLost, Message: "worker " + s.Key.ID +
				" was restarted, and the command ended with its former process"}
		case t.Task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLING:
			end = rules.End{Reason: rules.ReasonStopped, Message: "stopped before the worker received it"}
		default: // the lease did not arrive
			_, expires := s.hub.ensureLease(t.Namespace, t.Worker, t.Task)
			s.Send(leaseMessage(t.Namespace, t.Task, expires))
			s.resend(c, t)
			continue
		}
		if _, err := s.hub.end(s.Context(), c, *plane.System(t.Namespace), end); err != nil {
			return err
		}
	}
	s.disown(s.Hello.Held, held)
	return nil
}

// Run lets the session take commands and returns when ctx ends.
func (s *session) Run(ctx context.Context) error {
	s.hub.Notify()
	<-ctx.Done()
	return nil
}

// Close refuses further reports and waits for those that are being handled. Reports that no goroutine
// has begun to handle are dropped, since the session has ended when Close is called.
func (s *session) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.handling.Wait()
}

// held returns the commands that the worker has according to the journal, and ensures that
// each has a lease.
func (s *session) held() ([]model.HeldTask, error) {
	var all []model.HeldTask
	worker := s.worker()
	for _, p := range s.hub.engine.All() {
		held, _, err := journal.View(s.Context(), p, func(st *model.State) ([]model.HeldTask, error) {
			return st.HeldTasks(&worker), nil
		})
		if err != nil {
			return nil, err
		}
		for _, t := range held {
			if s.hub.command(t.Task.GetTaskId()) == nil { // the journal had to be loaded again
				s.hub.ensureLease(t.Namespace, t.Worker, t.Task)
			}
		}
		all = append(all, held...)
	}
	return all, nil
}

// resend sends a worker again the input of a command that it has not confirmed, and the
// request to stop it if there is one.
func (s *session) resend(c *command, t model.HeldTask) {
	confirmed := c.confirmedInput.Load()
	for _, in := range t.Inputs {
		if in.GetInputSeq() > confirmed {
			s.Send(inputMessage(in))
		}
	}
	if t.Task.GetState() == taskv1.TaskState_TASK_STATE_CANCELLING {
		s.Send(stopMessage(t.Task.GetTaskId(), t.Forced))
	}
}

// disown tells the worker to kill the commands among ids that are not in held.
func (s *session) disown(ids []string, held []model.HeldTask) {
	for _, id := range ids {
		holds := func(t model.HeldTask) bool { return t.Task.GetTaskId() == id }
		if !slices.ContainsFunc(held, holds) {
			s.Send(staleMessage(id, 0))
		}
	}
}
