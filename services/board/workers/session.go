package workers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
	"quartet/pkg/workerstream"
	"quartet/services/board/model"
	"quartet/services/board/rules"
)

// Limits of a worker's stream.
const (
	maxLabels      = 100
	maxWant        = 10_000
	maxBatchBytes  = 1 << 20 // of reports that are written together
	maxAssignments = 64      // in one message: each may have 16 KiB of text
)

// helloRules say what the board plane requires of a worker's hello.
var helloRules = workerstream.HelloRules{
	MinCapacity: 1, NeedsPool: true, PoolsField: "worker_pool_ids",
	HeldField: "run_ids", LabelLimit: maxLabels,
}

// Connect serves a worker's stream until it ends. The worker serves the namespace of its credential.
func (h *Hub) Connect(stream grpc.BidiStreamingServer[boardv1.ConnectRequest, boardv1.ConnectResponse]) error {
	first, hello, err := workerstream.ReceiveHello(stream, helloRules, helloOf)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	actor := plane.Recorded(rpc.ActorFrom(ctx))
	actor.AgentID = hello.WorkerID
	key := workerstream.Key{Namespace: actor.Namespace, ID: hello.WorkerID}
	s := &session{
		Session: workerstream.NewSession(ctx, key, *hello, h.cfg.Clock.Now(), mergeMessages),
		hub:     h, actor: actor, first: first, choosesSteps: first.GetHello().GetChoosesSteps(),
		wakeups: make(chan struct{}, 1),
	}
	h.mu.Lock()
	h.sessions[s.Session] = s
	h.mu.Unlock()
	stopping := fault.NotReady.New("the service of boards is stopping; connect again")
	return workerstream.Serve(stream, h.registry, s.Session, s, h.cfg.Stopping, stopping)
}

// helloOf returns what a message says of a worker, or nil if it is not a hello.
func helloOf(m *boardv1.ConnectRequest) *workerstream.Hello {
	h := m.GetHello()
	if h == nil {
		return nil
	}
	return &workerstream.Hello{
		WorkerID: h.GetWorkerId(), BootID: h.GetBootId(), Capacity: int(h.GetCapacity()), Pools: h.GetWorkerPoolIds(),
		Labels: h.GetLabels(), Held: h.GetRunIds(),
	}
}

// mergeMessages appends the contents of m to last, a message that waits to be sent, and reports true.
// It reports false and changes nothing if last would have more than maxAssignments assignments.
func mergeMessages(last, m *boardv1.ConnectResponse) bool {
	if len(last.GetAssigned())+len(m.GetAssigned()) > maxAssignments {
		return false
	}
	last.Assigned = append(last.Assigned, m.GetAssigned()...)
	last.Acks = append(last.Acks, m.GetAcks()...)
	last.CancelRunIds = append(last.CancelRunIds, m.GetCancelRunIds()...)
	return true
}

// session is one stream of one worker.
type session struct {
	*workerstream.Session[boardv1.ConnectResponse]
	hub          *Hub
	actor        journal.Actor
	first        *boardv1.ConnectRequest // with the hello
	choosesSteps bool                    // the worker claims steps itself; it is not assigned any
	turn         int                     // how many batches were written; used by Run alone

	want    atomic.Int64  // how many more steps the worker asked for
	wakeups chan struct{} // capacity 1: there may be something to do

	mu      sync.Mutex
	reports []*boardv1.StepReport // to be written
	renew   []string              // runs whose leases are to be renewed
	starts  []*boardv1.WorkerRun  // dispatched runs that are to begin
}

// wake makes Run look for something to do. It never blocks.
func (s *session) wake() {
	select {
	case s.wakeups <- struct{}{}:
	default:
	}
}

// begin queues a dispatched run.
func (s *session) begin(run *boardv1.WorkerRun) {
	s.mu.Lock()
	s.starts = append(s.starts, run)
	s.mu.Unlock()
	s.wake()
}

// send queues a message, in parts if it has too many assignments.
func (s *session) send(m *boardv1.ConnectResponse) {
	for len(m.GetAssigned()) > maxAssignments {
		s.Send(&boardv1.ConnectResponse{
			Assigned: m.GetAssigned()[:maxAssignments:maxAssignments], Acks: m.GetAcks(),
			CancelRunIds: m.GetCancelRunIds(),
		})
		m = &boardv1.ConnectResponse{Assigned: m.GetAssigned()[maxAssignments:]}
	}
	s.Send(m)
}

// Receive queues what the worker sent for the next batch. An error ends the session.
func (s *session) Receive(m *boardv1.ConnectRequest) error {
	if m.GetHello() != nil {
		return workerstream.SecondHello()
	}
	return s.enqueue(m)
}

// enqueue queues the reports, renewals and wishes of a message for the next batch. An error ends the
// session.
func (s *session) enqueue(m *boardv1.ConnectRequest) error {
	if n := m.GetWant(); n < 0 || n > maxWant {
		return fault.LimitExceeded.Newf("want is %d; it must be 0 to %d", n, maxWant).
			WithField("want", "must be 0 to 10000")
	}
	if m.GetWant() > 0 && s.want.Add(int64(m.GetWant())) > maxWant {
		s.want.Store(maxWant)
	}
	s.mu.Lock()
	s.reports = append(s.reports, m.GetReports()...)
	s.renew = append(s.renew, m.GetRenewRunIds()...)
	s.mu.Unlock()
	s.wake()
	return nil
}

// Run writes what was queued, batch by batch, until the session ends.
func (s *session) Run(ctx context.Context) error {
	for {
		select {
		case <-s.wakeups:
		case <-ctx.Done():
			return nil
		}
		s.mu.Lock()
		reports, renew, starts := s.reports, s.renew, s.starts
		s.reports, s.renew, s.starts = nil, nil, nil
		s.mu.Unlock()
		if len(renew) > 0 {
			if err := s.renewLeases(renew); err != nil {
				return err
			}
		}
		for first := true; first || len(reports) > 0; first = false {
			n := countFitting(reports)
			if err := s.write(reports[:n], starts); err != nil {
				return err
			}
			reports, starts = reports[n:], nil
		}
	}
}

// Close forgets the session.
func (s *session) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.sessions, s.Session)
}

// countFitting returns how many of the reports, from the first on, go into one write: at
// least one, if there are any.
func countFitting(reports []*boardv1.StepReport) int {
	size := 0
	for i, r := range reports {
		size += len(r.GetResultSummary()) + len(r.GetReason()) + len(r.GetWorkerResult()) + 512
		for _, a := range r.GetArtifactIds() {
			size += len(a) + 8
		}
		if size > maxBatchBytes && i > 0 {
			return i
		}
	}
	return len(reports)
}

// write writes one batch in each partition that it concerns. The partition of a
// run is not part of its id: each partition takes the reports on runs that it
// knows, and the last one refuses those that none knew.
func (s *session) write(reports []*boardv1.StepReport, starts []*boardv1.WorkerRun) error {
	parts := s.hub.engine.All()
	madeRoom := len(reports) > 0 && len(parts) > 1
	first := s.turn // rotates, so that no partition is always the first to give steps
	for i := range parts {
		var err error
		if reports, err = s.commit(parts[(first+i)%len(parts)], reports, starts, i < len(parts)-1); err != nil {
			return err
		}
	}
	if !madeRoom {
		return nil
	}
	// Partitions before those of the reports may have steps for the room that the
	// reports made.
	for i := range parts {
		if _, err := s.commit(parts[(first+i)%len(parts)], nil, nil, false); err != nil {
			return err
		}
	}
	return nil
}

// commit writes one batch in one partition and sends the worker the result. If more is set,
// because other partitions follow, it returns the reports on runs that this partition does
// not know. Dispatched runs begin in the partition of their board.
func (s *session) commit(p *journal.Partition[*model.State], reports []*boardv1.StepReport, starts []*boardv1.WorkerRun,
	more bool,
) (unknown []*boardv1.StepReport, _ error) {
	registry := s.hub.registry
	want, room := int(s.want.Load()), registry.Room(s.Session)
	starts = s.startsIn(p, starts)
	if len(reports) == 0 && len(starts) == 0 && min(want, room) <= 0 {
		return nil, nil
	}
	if err := s.hub.cfg.Leases.ExpireNamespace(s.Context(), s.Key.Namespace); err != nil {
		return nil, err
	}
	batch := rules.Batch{
		Namespace: s.Key.Namespace, WorkerID: s.Key.ID, Pools: s.Hello.Pools, ChoosesSteps: s.choosesSteps,
		Reports: reports, Begin: starts, Want: want, Room: room, Turn: s.turn, MorePartitions: more,
		MintToken: func(runID string) string { return s.hub.cfg.MintToken(s.Key.Namespace, s.Key.ID, runID) },
	}
	out, err := s.decide(p, batch)
	// Reports, starts and claims together make more events than one command may have. Claim
	// fewer steps; the next batch claims the rest.
	for errors.Is(err, fault.TooLarge) && max(len(reports), len(starts)) <= 1 && batch.Want > 0 {
		batch.Want = min(batch.Want, room+len(reports)+len(starts)) / 2
		s.wake()
		out, err = s.decide(p, batch)
	}
	if errors.Is(err, fault.TooLarge) && max(len(reports), len(starts)) > 1 {
		first, err := s.commit(p, reports[:len(reports)/2], starts[:len(starts)/2], more)
		if err != nil {
			return nil, err
		}
		second, err := s.commit(p, reports[len(reports)/2:], starts[len(starts)/2:], more)
		return append(first, second...), err
	}
	if err != nil {
		return nil, err
	}
	s.turn++
	registry.Release(s.Key.Namespace, out.Ended...)
	if len(out.Gone) > 0 {
		registry.Release(s.Key.Namespace, out.Gone...)
		s.wake() // the next batch has their room
	}
	s.want.Add(-int64(out.Claims))
	if len(out.Acks)+len(out.Assigned) > 0 {
		s.send(&boardv1.ConnectResponse{Acks: out.Acks, Assigned: out.Assigned})
	}
	return out.Unknown, nil
}

// startsIn returns those of starts whose boards are in a partition.
func (s *session) startsIn(p *journal.Partition[*model.State], starts []*boardv1.WorkerRun) []*boardv1.WorkerRun {
	var in []*boardv1.WorkerRun
	for _, run := range starts {
		if s.hub.engine.For(s.Key.Namespace, run.GetSessionId()) == p {
			in = append(in, run)
		}
	}
	return in
}

// decide makes one attempt to write a batch in one partition.
func (s *session) decide(p *journal.Partition[*model.State], batch rules.Batch) (rules.BatchResult, error) {
	out, _, err := journal.Do(s.Context(), p, journal.Op[*model.State, rules.BatchResult]{
		Method: "Connect", Actor: s.actor,
		Decide: func(st *model.State, env journal.Env) (d journal.Decision[rules.BatchResult], err error) {
			d.Events, d.Reply = batch.Decide(st, env)
			return d, nil
		},
	})
	return out, err
}

// renewLeases renews the leases of the runs of ids that are in progress on this worker, and tells the worker to stop
// the other runs of ids: they have ended, are unknown or are another worker's. It returns an error only if the state
// of a partition cannot be read; then it has told the worker nothing, and some leases may be renewed.
func (s *session) renewLeases(ids []string) error {
	ended := map[string]bool{}
	for _, id := range ids {
		ended[id] = true
	}
	for _, p := range s.hub.engine.All() {
		running, _, err := journal.View(s.Context(), p, func(st *model.State) (out []string, _ error) {
			for _, id := range ids {
				if r := st.Runs[model.Key{Namespace: s.Key.Namespace, ID: id}]; r != nil && r.Running() &&
					r.Record.GetWorkerId() == s.Key.ID {
					out = append(out, id)
				}
			}
			return out, nil
		})
		if err != nil {
			return err
		}
		for _, id := range running {
			s.hub.cfg.Leases.Renew(s.Key.Namespace, id)
			delete(ended, id)
		}
	}
	if len(ended) > 0 {
		s.send(&boardv1.ConnectResponse{CancelRunIds: sortedKeys(ended)})
	}
	return nil
}

// sortedKeys returns the members of a set in order.
func sortedKeys(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// heldRuns is what a partition knows of the runs of a worker that connects.
type heldRuns struct {
	runs   []string                  // ids of all that are in progress
	assign []*boardv1.StepAssignment // with the steps that they hold; unknown to the worker
	begin  []*boardv1.WorkerRun      // all others that are unknown to the worker
	cancel []string                  // ids of those that are being cancelled
}

// Welcome reconciles the runs of a worker that connects and renews the leases of those in
// progress. The worker gets the steps of runs that it does not know, and is told to stop runs
// that have ended or are being cancelled. Other runs that it does not know, and the rest of
// its first message, are queued for Run.
func (s *session) Welcome() error {
	known, ended := map[string]bool{}, map[string]bool{} // of the runs that the worker says it has
	for _, id := range s.Hello.Held {
		known[id], ended[id] = true, true
	}
	m := &boardv1.ConnectResponse{}
	for _, p := range s.hub.engine.All() {
		held, _, err := journal.View(s.Context(), p, func(st *model.State) (heldRuns, error) {
			return s.heldIn(st, known), nil
		})
		if err != nil {
			return err
		}
		for _, id := range held.runs {
			s.hub.cfg.Leases.Renew(s.Key.Namespace, id)
			delete(ended, id)
		}
		s.hub.registry.Assign(s.Session, held.runs...)
		m.Assigned = append(m.Assigned, held.assign...)
		m.CancelRunIds = append(m.CancelRunIds, held.cancel...)
		s.mu.Lock()
		s.starts = append(s.starts, held.begin...)
		s.mu.Unlock()
	}
	m.CancelRunIds = append(m.CancelRunIds, sortedKeys(ended)...)
	if len(m.GetAssigned())+len(m.GetCancelRunIds()) > 0 {
		slices.Sort(m.CancelRunIds)
		s.send(m)
	}
	return s.enqueue(s.first)
}

// heldIn returns what a partition knows of the worker's runs. known are those
// that the worker says it has.
func (s *session) heldIn(st *model.State, known map[string]bool) (held heldRuns) {
	for b := range st.WithRuns {
		if b.Key.Namespace != s.Key.Namespace {
			continue
		}
		for id, r := range b.Runs {
			if r.Record.GetWorkerId() != s.Key.ID {
				continue
			}
			held.runs = append(held.runs, id)
			switch {
			case r.Record.GetCancelling():
				held.cancel = append(held.cancel, id)
			case known[id]:
			case r.HoldsStep() && !s.choosesSteps:
				held.assign = append(held.assign, &boardv1.StepAssignment{
					Run: r.Shown(), Step: b.ShownStep(r.Step, s.hub.cfg.Leases.Expiry(s.Key.Namespace)),
					Dependencies: rules.Dependencies(r.Step, nil),
				})
			default:
				held.begin = append(held.begin, r.Record)
			}
		}
	}
	return held
}
