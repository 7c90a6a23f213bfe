package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// pool is the pool of all steps.
const pool = "hands"

// boardCalls makes random calls about boards, as an orchestrator.
type boardCalls struct {
	*client
	boards boardv1.BoardServiceClient
	mine   []boardName
	runs   []runName
}

// boardName names a board.
type boardName struct{ session, board string }

// runName names a run of a board.
type runName struct {
	boardName
	run string
}

func newBoardCalls(w *world, k *known, name string, seed uint64) *boardCalls {
	return &boardCalls{
		client: newClient(w, k, name, seed),
		boards: boardv1.NewBoardServiceClient(w.conn(nil, name, "board")),
	}
}

// run makes n calls.
func (c *boardCalls) run(n int) {
	for range n {
		if c.w.ctx.Err() != nil || c.k.check() != nil {
			return
		}
		<-time.After(time.Duration(c.rnd.IntN(1500)) * time.Millisecond)
		c.one()
	}
}

func (c *boardCalls) one() {
	if len(c.mine) == 0 {
		c.create()
		return
	}
	b := c.mine[c.rnd.IntN(len(c.mine))]
	ctx := c.orchestrator(b.session)
	step := fmt.Sprint("step-", c.rnd.IntN(5))
	request := c.request()
	call := func(what string, f func(ctx context.Context) error) { _ = c.until(ctx, what, f) }
	switch k := c.rnd.IntN(30); {
	case k < 4:
		c.create()
	case k < 6:
		c.open(ctx, b)
	case k < 10:
		c.dispatch(ctx, b)
	case k < 12 && len(c.runs) > 0:
		r := c.runs[c.rnd.IntN(len(c.runs))]
		call("CancelWorkerRun", func(ctx context.Context) error {
			_, err := c.boards.CancelWorkerRun(ctx, &boardv1.CancelWorkerRunRequest{
				SessionId: r.session, BoardId: r.board, RunId: r.run, RequestId: request,
			})
			return err
		})
	case k < 16:
		to := []boardv1.StepStatus{
			boardv1.StepStatus_STEP_STATUS_COMPLETED, boardv1.StepStatus_STEP_STATUS_FAILED,
			boardv1.StepStatus_STEP_STATUS_BLOCKED, boardv1.StepStatus_STEP_STATUS_PENDING,
		}[c.rnd.IntN(4)]
		c.change(ctx, "UpdateStep", func(ctx context.Context, id string) ([]string, error) {
			r, err := c.boards.UpdateStep(ctx, &boardv1.UpdateStepRequest{
				SessionId: b.session, BoardId: b.board, StepId: step, Status: to, RequestId: id, Reason: "because",
			})
			return r.GetEventIds(), err
		})
	case k < 22:
		op := c.operation(step, request)
		c.change(ctx, "UpdateBoard", func(ctx context.Context, id string) ([]string, error) {
			r, err := c.boards.UpdateBoard(ctx, &boardv1.UpdateBoardRequest{
				SessionId: b.session, BoardId: b.board, RequestId: id, Operations: []*boardv1.Operation{op},
			})
			return r.GetEventIds(), err
		})
	case k < 25:
		c.read(ctx, b)
	case k < 26:
		c.change(ctx, "CompleteBoard", func(ctx context.Context, id string) ([]string, error) {
			r, err := c.boards.CompleteBoard(ctx, &boardv1.CompleteBoardRequest{
				SessionId: b.session, BoardId: b.board, RequestId: id,
			})
			return r.GetEventIds(), err
		})
	case k < 27:
		call("CancelBoard", func(ctx context.Context) error {
			_, err := c.boards.CancelBoard(ctx, &boardv1.CancelBoardRequest{
				SessionId: b.session, BoardId: b.board, RequestId: request, Reason: "because",
			})
			return err
		})
	default:
		c.repeat()
	}
}

// orchestrator returns the context of a call about a board of a session: of its agent, or of an administrator.
func (c *boardCalls) orchestrator(session string) context.Context {
	if c.rnd.IntN(2) == 0 {
		return planetest.AsAgent(c.w.ctx, session)
	}
	return planetest.As(c.w.ctx, rpc.RoleAdmin)
}

// change makes a mutation of a board that may be repeated.
func (c *boardCalls) change(ctx context.Context, what string, call func(ctx context.Context, id string) ([]string,
	error),
) {
	request := c.request()
	var events []string
	ask := func() error {
		return c.until(ctx, what, func(ctx context.Context) (err error) {
			events, err = call(ctx, request)
			return err
		})
	}
	if ask() != nil {
		return
	}
	if !c.w.books.has("board", request) {
		c.k.violation("%s: %s %s was answered and is not in the journal", c.name, what, request)
	}
	c.answered = append(c.answered, answered{
		at: time.Now(), what: what, id: fmt.Sprint(events),
		again: func() (string, error) {
			err := ask()
			return fmt.Sprint(events), err
		},
	})
}

// operation returns a random operation on a board.
func (c *boardCalls) operation(step, request string) *boardv1.Operation {
	switch c.rnd.IntN(6) {
	case 0:
		return &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_ADD_STEP, Step: &boardv1.StepInput{
			StepId: "added-" + request, Title: "added", DependsOnStepIds: []string{step},
		}}
	case 1:
		return &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_CANCEL_STEP, StepId: step, Reason: "because"}
	case 2, 3:
		return &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_REOPEN_STEP, StepId: step, Reason: "because"}
	case 4:
		return &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_BLOCK_BOARD, Reason: "because"}
	}
	return &boardv1.Operation{Op: boardv1.OperationKind_OPERATION_KIND_REOPEN_BOARD, Reason: "because"}
}

// create creates a board, and mostly opens it for workers.
func (c *boardCalls) create() {
	b := boardName{c.agent(), c.request()}
	ctx := c.orchestrator(b.session)
	var steps []*boardv1.StepInput
	for n := range 3 + c.rnd.IntN(3) {
		s := &boardv1.StepInput{StepId: fmt.Sprint("step-", n), Title: "a step"}
		if n > 0 && c.rnd.IntN(4) > 0 {
			s.DependsOnStepIds = []string{fmt.Sprint("step-", c.rnd.IntN(n))}
		}
		if n > 1 && c.rnd.IntN(3) == 0 && !slices.Contains(s.GetDependsOnStepIds(), "step-0") {
			s.DependsOnStepIds = append(s.DependsOnStepIds, "step-0")
		}
		if c.rnd.IntN(4) == 0 {
			s.Required = new(bool)
		}
		steps = append(steps, s)
	}
	_, err := mutate(c.client, ctx, "board", "CreateBoard", func(r *boardv1.CreateBoardResponse) string {
		return r.GetBoard().GetBoardId()
	}, func(ctx context.Context, id string) (*boardv1.CreateBoardResponse, error) {
		return c.boards.CreateBoard(ctx, &boardv1.CreateBoardRequest{
			SessionId: b.session, BoardId: b.board,
			WalName: b.board, Title: "a board", Steps: steps, DefaultWorkerPoolId: pool, RequestId: id,
		})
	})
	if err != nil {
		if c.w.ctx.Err() == nil {
			c.k.violation("%s: creating board %s is refused: %w", c.name, b, err)
		}
		return
	}
	c.mine = append(c.mine, b)
	if c.rnd.IntN(4) > 0 {
		c.open(ctx, b)
	}
}

// open lets workers claim steps of a board.
func (c *boardCalls) open(ctx context.Context, b boardName) {
	limit := durationpb.New(time.Duration(5+c.rnd.IntN(60)) * time.Second)
	parallel := int32(1 + c.rnd.IntN(3))
	_, _ = mutate(c.client, ctx, "board", "OpenStandingDispatch", func(r *boardv1.OpenStandingDispatchResponse) string {
		return r.GetDispatch().GetDispatchId()
	}, func(ctx context.Context, id string) (*boardv1.OpenStandingDispatchResponse, error) {
		return c.boards.OpenStandingDispatch(ctx, &boardv1.OpenStandingDispatchRequest{
			SessionId: b.session, BoardId: b.board, MaxParallel: parallel, StepTimeout: limit, RequestId: id,
		})
	})
}

// dispatch starts a run on a worker.
func (c *boardCalls) dispatch(ctx context.Context, b boardName) {
	limit := durationpb.New(time.Duration(5+c.rnd.IntN(60)) * time.Second)
	resp, err := mutate(c.client, ctx, "board", "DispatchWorker", func(r *boardv1.DispatchWorkerResponse) string {
		return r.GetRun().GetRunId()
	}, func(ctx context.Context, id string) (*boardv1.DispatchWorkerResponse, error) {
		return c.boards.DispatchWorker(ctx, &boardv1.DispatchWorkerRequest{
			SessionId: b.session, BoardId: b.board, Timeout: limit, Wait: durationpb.New(0), RequestId: id,
		})
	})
	if err == nil {
		c.runs = append(c.runs, runName{b, resp.GetRun().GetRunId()})
	}
}

// read reads a board. What it shows must be stored (SPEC X1).
func (c *boardCalls) read(ctx context.Context, b boardName) {
	var got *boardv1.Board
	err := c.until(ctx, "GetBoard", func(ctx context.Context) error {
		r, err := c.boards.GetBoard(ctx, &boardv1.GetBoardRequest{SessionId: b.session, BoardId: b.board})
		got = r.GetBoard()
		return err
	})
	switch {
	case c.w.ctx.Err() != nil:
	case err != nil && fault.From(err).Reason() == fault.HistoryRemoved &&
		c.w.books.endedBefore(b.key(), c.w.history()):
	case err != nil:
		c.k.violation("%s: board %s was created, and reading it is refused: %w", c.name, b, err)
	default:
		for _, s := range got.GetSteps() {
			if !c.w.books.was("step", b.key()+"/"+s.GetStepId(), stepState(s.GetStatus())) {
				c.k.violation("%s: step %s of board %s is shown as %s, which it never was in the journal", c.name,
					s.GetStepId(), b, s.GetStatus())
			}
		}
	}
}

// key returns the name of a board in the books.
func (b boardName) key() string { return b.session + "/" + b.board }

// boardWorker executes steps of boards as far as the board plane sees.
type boardWorker struct {
	*client
	id     string
	boots  int
	modest bool
	conn   boardv1.BoardWorkerServiceClient

	changed chan struct{} // capacity 1

	mu   sync.Mutex
	runs map[string]*stepRun
}

// stepRun is a run that a worker executes.
type stepRun struct {
	id       string
	held     bool // it has a step
	reports  []*boardv1.StepReport
	acked    int           // of the reports
	finished bool          // its last report is there
	stop     chan struct{} // closed when nothing is to be done for it any more
}

const boardCapacity = 2

func newBoardWorker(w *world, k *known, name string, seed uint64) *boardWorker {
	c := newClient(w, k, name, seed)
	return &boardWorker{
		client: c, id: name, conn: boardv1.NewBoardWorkerServiceClient(w.conn(nil, name, "board")),
		changed: make(chan struct{}, 1),
	}
}

// run holds streams until ctx ends, one after the other.
func (w *boardWorker) run(ctx context.Context) {
	ctx = planetest.As(ctx, rpc.RoleWorker)
	for ctx.Err() == nil && w.k.check() == nil {
		if w.boots == 0 || !w.modest && w.rnd.IntN(10) == 0 {
			w.boot()
		}
		patience := time.Duration(5+w.rnd.IntN(90)) * time.Second
		if w.modest {
			patience = time.Hour
		}
		w.session(ctx, patience)
		select {
		case <-time.After(time.Duration(100+w.rnd.IntN(400)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	w.boot()
}

// calm implements worker.
func (w *boardWorker) calm() { w.modest = true }

// boot begins a new process of the worker, which has no runs.
func (w *boardWorker) boot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.runs {
		close(r.stop)
	}
	w.boots++
	w.runs = map[string]*stepRun{}
}

// session holds one stream until it breaks, or the worker leaves it.
func (w *boardWorker) session(ctx context.Context, patience time.Duration) {
	ctx, leave := context.WithTimeout(ctx, patience)
	defer leave()
	stream, err := w.conn.Connect(ctx)
	held := w.holding()
	if err == nil {
		err = stream.Send(&boardv1.ConnectRequest{
			Want: int32(boardCapacity - min(boardCapacity, len(held))),
			Hello: &boardv1.BoardWorkerHello{
				WorkerId: w.id, BootId: fmt.Sprintf("%s-%d", w.id, w.boots), WorkerPoolIds: []string{pool},
				Capacity: boardCapacity, RunIds: held,
			},
		})
	}
	if err == nil {
		_, err = stream.Header()
	}
	if err != nil {
		w.refusedStream("board worker "+w.id, err)
		return
	}
	w.wake()
	received := make(chan error, 1)
	freed := make(chan int32, 1)
	freed <- 0
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			n := w.receive(m)
			freed <- n + <-freed
		}
	}()
	renewal := time.NewTicker(stepLease / 3)
	defer renewal.Stop()
	sent := map[*stepRun]int{}
	for err == nil {
		renew := false
		select {
		case <-w.changed:
		case <-renewal.C:
			renew = true
		case err = <-received:
			w.refusedStream("board worker "+w.id, err)
			return
		case <-ctx.Done():
		}
		select {
		case err = <-received:
			w.refusedStream("board worker "+w.id, err)
			return
		default:
		}
		select {
		case <-renewal.C:
			renew = true
		default:
		}
		if err = ctx.Err(); err != nil {
			break
		}
		m := &boardv1.ConnectRequest{Reports: w.due(sent), Want: <-freed}
		freed <- 0
		if renew {
			m.RenewRunIds = w.holding()
		}
		if len(m.GetReports())+len(m.GetRenewRunIds())+int(m.GetWant()) > 0 {
			err = stream.Send(m)
		}
	}
	leave()
	w.refusedStream("board worker "+w.id, <-received)
}

// holding returns the runs that the worker has, in order.
func (w *boardWorker) holding() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.runs))
}

// due returns the reports that were not sent in a session.
func (w *boardWorker) due(sent map[*stepRun]int) (all []*boardv1.StepReport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(w.runs)) {
		r := w.runs[id]
		from := max(sent[r], r.acked)
		all = append(all, r.reports[from:]...)
		sent[r] = len(r.reports)
	}
	return all
}

// receive handles one message of the board plane, and returns how many more runs the worker can have.
func (w *boardWorker) receive(m *boardv1.ConnectResponse) (room int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range m.GetAcks() {
		r := w.runs[a.GetRunId()]
		if r == nil {
			continue
		}
		if a.GetError() == "" && r.acked < len(r.reports) {
			w.stored(r, r.reports[r.acked])
			r.acked++
		}
		if a.GetError() != "" || r.finished && r.acked == len(r.reports) {
			w.drop(r)
			room++
		}
	}
	for _, id := range m.GetCancelRunIds() {
		if r := w.runs[id]; r != nil && !r.finished {
			r.report(&boardv1.StepReport{RunId: id, Finished: true, WorkerResult: "stopped"})
		}
	}
	for _, a := range m.GetAssigned() {
		id := a.GetRun().GetRunId()
		if w.runs[id] != nil {
			continue
		}
		r := &stepRun{id: id, held: a.GetStep() != nil, stop: make(chan struct{})}
		w.runs[id] = r
		go w.execute(r)
	}
	w.wake()
	return room
}

// drop forgets a run.
func (w *boardWorker) drop(r *stepRun) {
	close(r.stop)
	delete(w.runs, r.id)
}

// report adds a report. After the last one there is no other.
func (r *stepRun) report(rep *boardv1.StepReport) {
	if !r.finished {
		r.reports = append(r.reports, rep)
		r.finished = rep.GetFinished()
	}
}

// stored checks that an acknowledged report is in the journal (SPEC X1).
func (w *boardWorker) stored(r *stepRun, rep *boardv1.StepReport) {
	if rep.GetStatus() == 0 {
		return
	}
	if !w.w.books.was("report", r.id, stepState(rep.GetStatus())) {
		w.k.violation("the report %s of run %s is acknowledged and not in the journal", rep.GetStatus(), r.id)
	}
}

// execute is the life of a run: it reports its step as running, and then how it ended. Some never report anything.
func (w *boardWorker) execute(r *stepRun) {
	plan := planned("run ", r.id)
	say := func(rep *boardv1.StepReport) {
		w.mu.Lock()
		defer w.mu.Unlock()
		rep.RunId = r.id
		if !closed(r.stop) {
			r.report(rep)
			w.wake()
		}
	}
	after := func(most time.Duration) bool {
		select {
		case <-time.After(time.Duration(plan.Int64N(int64(most)))):
			return true
		case <-r.stop:
			return false
		}
	}
	end := &boardv1.StepReport{Finished: true, WorkerResult: "done"}
	switch k := plan.IntN(12); {
	case !r.held:
	case k == 0:
		return // it hangs, until its lease or its time is over
	case k == 1: // without a status
	case k < 4:
		end.Status, end.Reason = boardv1.StepStatus_STEP_STATUS_FAILED, "it failed"
	case k < 5:
		end.Status, end.Reason = boardv1.StepStatus_STEP_STATUS_BLOCKED, "it is blocked"
	default:
		end.Status, end.ResultSummary = boardv1.StepStatus_STEP_STATUS_COMPLETED, new(string)
		*end.ResultSummary = "the result of " + r.id
	}
	if r.held && plan.IntN(3) > 0 {
		if !after(2 * time.Second) {
			return
		}
		say(&boardv1.StepReport{Status: boardv1.StepStatus_STEP_STATUS_RUNNING})
	}
	if after(8 * time.Second) {
		say(end)
	}
}

// wake has the session look for reports.
func (w *boardWorker) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// boardsAtRest compares the boards of a quiet system with the books. Without workers no step is held; working says that
// they are still there, so that none that they may claim is left.
func (c *client) boardsAtRest(working bool) error {
	ctx := planetest.As(c.w.ctx, rpc.RoleOperator)
	boards := boardv1.NewBoardServiceClient(c.w.conn(nil, c.name, "board"))
	for _, session := range agents {
		list, err := boards.ListBoards(ctx, &boardv1.ListBoardsRequest{SessionId: session, IncludeTerminal: true})
		if err != nil {
			return err
		}
		for _, listed := range list.GetBoards() {
			resp, err := boards.InspectBoard(ctx, &boardv1.InspectBoardRequest{
				SessionId: session,
				BoardId:   listed.GetBoardId(),
			})
			if err != nil {
				return err
			}
			if err := c.boardAtRest(resp, working); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *client) boardAtRest(resp *boardv1.InspectBoardResponse, working bool) error {
	b := resp.GetBoard()
	name := boardName{b.GetSessionId(), b.GetBoardId()}
	for _, s := range b.GetSteps() {
		if state := c.w.books.state("step", name.key()+"/"+s.GetStepId()); state != stepState(s.GetStatus()) {
			return fmt.Errorf("step %s of board %s is %s, and the journal says %s", s.GetStepId(), name, s.GetStatus(),
				state)
		}
		held := s.GetStatus() == boardv1.StepStatus_STEP_STATUS_CLAIMED ||
			s.GetStatus() == boardv1.StepStatus_STEP_STATUS_RUNNING
		if held && !working {
			return fmt.Errorf("step %s of board %s is held by run %s, and no worker is there", s.GetStepId(), name,
				s.GetClaimedByRunId())
		}
		open := len(resp.GetDispatches()) > 0 && b.GetStatus() == boardv1.BoardStatus_BOARD_STATUS_RUNNING &&
			!b.GetTerminating()
		if s.GetStatus() == boardv1.StepStatus_STEP_STATUS_READY && open && working {
			return fmt.Errorf("step %s of board %s is ready, and workers that may claim it do not", s.GetStepId(), name)
		}
	}
	if b.GetTerminating() {
		return fmt.Errorf("board %s is being ended, and does not end", name)
	}
	return nil
}

// stepState returns the name of a status in the books.
func stepState(s boardv1.StepStatus) string { return s.String()[len("STEP_STATUS_"):] }
