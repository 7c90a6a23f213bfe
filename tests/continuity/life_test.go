package continuity

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
	"quartet/services/worker"
	"quartet/tests/planes"
)

var (
	kills = flag.Int("kills", 2, "how many of the kills of each scenario to try in each way; -1: all")
	seed  = flag.Uint64("seed", 1, "which of the kills are tried")
)

// scenario is a part of an agent's life: what goes on outside, and an actor that must do the
// right thing about it.
type scenario struct {
	// before is what was there before.
	before func(l *life)
	// actor acts for the agent, child for the agents that it spawns.
	actor, child actor
	// outside is what comes from outside, in this order.
	outside []step
	// commands means that a worker runs commands.
	commands bool
	// local are the runner's own tools.
	local map[string]func(l *life, args map[string]any) string
	// check says whether all came out right.
	check func(l *life)
}

// step is something that comes from outside.
type step struct {
	// during says when it comes, by what the turn of then knows. Nil: when nothing goes on.
	during func(s sight) bool
	do     func(l *life)
}

// idle is a step that comes when nothing goes on.
func idle(do func(l *life)) step { return step{do: do} }

// kill says what ends in the middle of a scenario, and where.
type kill struct {
	// what is "runner", whose turn is left as it is, "server", all of whose planes end, "both",
	// or "machine": the server and the worker that it embeds.
	what string
	// at is the point of the runner, or the frame of the server, counted from 1.
	at int
}

func (k kill) String() string {
	if k.what == "" {
		return "plain"
	}
	return fmt.Sprintf("%s@%d", k.what, k.at)
}

// life runs a scenario.
type life struct {
	t   *testing.T
	w   *planes.World
	s   scenario
	k   kill
	dir string

	outage   *outage
	worker   *worker.Worker
	received *counted

	points  int      // that the runner passed
	next    int      // the next step from outside
	ids     int      // of requests
	unknown string   // a local call whose outcome the next context must call unknown
	cut     string   // the message whose turn was lost
	mails   []string // that were sent
	story   []string // for whoever reads a failure
}

// live runs a scenario undisturbed, and then with kills.
func live(t *testing.T, s scenario) {
	t.Parallel()
	var points, frames int
	if !t.Run("plain", func(t *testing.T) { points, frames = once(t, s, kill{}) }) {
		return
	}
	h := fnv.New64()
	_, _ = h.Write([]byte(t.Name()))
	random := rand.New(rand.NewPCG(*seed, h.Sum64()))
	ways := map[string]int{"runner": points, "server": frames, "both": frames}
	if s.commands {
		ways["machine"] = frames
	}
	most := *kills
	if testing.Short() {
		most = min(most, 1)
	}
	for _, what := range slices.Sorted(maps.Keys(ways)) {
		ats := random.Perm(ways[what])
		if most >= 0 && len(ats) > most {
			ats = ats[:most]
		}
		slices.Sort(ats)
		for _, at := range ats {
			k := kill{what, at + 1}
			t.Run(k.String(), func(t *testing.T) { once(t, s, k) })
		}
	}
}

// once runs a scenario with one kill at most, and returns how many points of the runner and how
// many frames it had.
func once(t *testing.T, s scenario, k kill) (points, frames int) {
	dir := t.TempDir()
	l := &life{t: t, s: s, k: k, dir: filepath.Join(dir, "work"), outage: newOutage(), received: newCounted()}
	require.NoError(t, os.Mkdir(l.dir, 0o755))
	var err error
	l.w, err = planes.New(planes.Config{
		Home: filepath.Join(dir, "home"), Log: l.outage.log,
		Register: func(name string, srv grpc.ServiceRegistrar) grpc.ServiceRegistrar {
			if name == "task" {
				return l.received.on(srv)
			}
			return srv
		},
	})
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(l.story, "\n"))
		}
		l.stopWorker()
		_ = l.w.Close()
	}()
	require.NoError(t, err)
	if s.commands {
		l.startWorker()
	}
	l.call(func(ctx context.Context) error {
		return must.Err(l.w.Agents().SpawnAgent(planetest.As(ctx, rpc.RoleOperator), &agentv1.SpawnAgentRequest{
			AgentId: keeper, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, WorkspaceRoot: l.dir,
		}))
	})
	if s.before != nil {
		s.before(l)
	}
	l.quiet()
	last := 0
	if k.what != "runner" {
		last = k.at
	}
	l.outage.begin(last)
	l.run()
	points, frames = l.points, l.outage.stored()
	require.Empty(t, l.unknown, "the outcome of a local call was never called unknown")
	l.nothingTwice()
	s.check(l)
	return points, frames
}

const keeper = "keeper"

// mostTurns bounds a scenario: an actor that is not told what it needs may not come to an end.
const mostTurns = 80

// run goes on until nothing is left to do.
func (l *life) run() {
	for range mostTurns {
		l.quiet()
		before := l.w.Tails()
		if l.turn() || l.w.Tails() != before { // a message may have been dropped, and made way for another
			continue
		}
		// What is to be tried again is tried after a while.
		if l.pass(2 * time.Second); l.w.Tails() != before {
			continue
		}
		l.note("--- nothing goes on: %v", l.verdict())
		if l.next == len(l.s.outside) {
			return
		}
		step := l.s.outside[l.next]
		require.Nil(l.t, step.during, "nothing goes on, and step %d has not come", l.next)
		l.next++
		step.do(l)
	}
	require.FailNow(l.t, "the scenario does not end")
}

func (l *life) note(format string, args ...any) {
	l.story = append(l.story, fmt.Sprintf(format, args...))
}

// call makes a call until the server answers it. A server that ended is started anew, and the same
// request is repeated.
func (l *life) call(do func(ctx context.Context) error) {
	l.t.Helper()
	require.NoError(l.t, l.repeated(do))
}

// repeated is call with the error of the answer.
func (l *life) repeated(do func(ctx context.Context) error) error {
	l.t.Helper()
	for range 3 {
		if err := l.asked(do); !errors.Is(err, errDown) {
			return err
		}
	}
	require.FailNow(l.t, "the server ends again and again")
	return nil
}

// runner makes a call of the runner, and returns false if the runner has ended with the server,
// or has been told that the turn is not its own any more. Otherwise it repeats the call like call
// does.
func (l *life) runner(do func(ctx context.Context) error) (alive bool) {
	l.t.Helper()
	asRunner := func(ctx context.Context) error { return do(planetest.As(ctx, rpc.RoleRunner)) }
	var err error
	if l.k.what == "both" {
		err = l.asked(asRunner)
	} else {
		err = l.repeated(asRunner)
	}
	if err != nil && (errors.Is(err, errDown) || errors.Is(fault.From(err), fault.RunStale)) {
		l.note("--- the turn is over: %v", err)
		return false
	}
	require.NoError(l.t, err)
	return true
}

// asked makes a call and returns its error. If the server ends meanwhile, it is started anew, and
// asked returns errDown.
func (l *life) asked(do func(ctx context.Context) error) error {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.w.Context(), planes.Hang)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- do(ctx) }()
	var err error
	select {
	case err = <-answer:
	case <-l.outage.ended():
		cancel() // the connection is gone
		l.restart()
		<-answer
		return errDown
	}
	if l.outage.over() { // the answer did not reach its caller
		l.restart()
		return errDown
	}
	return err
}

// restart starts the server anew.
func (l *life) restart() {
	l.note("--- the server ends, and is started anew")
	l.w.Kill()
	if l.k.what == "machine" {
		l.stopWorker()
	}
	l.outage.mend()
	require.NoError(l.t, l.w.Up())
	if l.k.what == "machine" {
		l.startWorker()
	}
	l.connected()
}

// startWorker starts the worker, which runs commands for as long as they take.
func (l *life) startWorker() {
	cfg := worker.Config{
		ID: "w1", Roots: []string{l.dir}, StateDir: filepath.Dir(l.dir), Heartbeat: 5 * time.Millisecond,
		Grace: time.Second, Capacity: 16,
		Dial: func() (grpc.ClientConnInterface, error) { return asWorker{l.w.Conn("task")}, nil },
	}
	// A process that is being started has the lock of the worker before until it is another program.
	require.Eventually(l.t, func() bool {
		w, err := worker.New(cfg)
		if err == nil {
			err = w.Start(context.Background())
		}
		l.worker = w
		return err == nil
	}, planes.Hang, 5*time.Millisecond)
	l.connected()
}

func (l *life) stopWorker() {
	if l.worker == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a worker that is killed reports nothing
	_ = l.worker.Stop(ctx)
	l.worker = nil
}

// asWorker makes calls act as a worker of the namespace.
type asWorker struct{ grpc.ClientConnInterface }

// NewStream implements grpc.ClientConnInterface.
func (c asWorker) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	return c.ClientConnInterface.NewStream(
		rpc.WithActor(ctx, rpc.Actor{Namespace: "acme", Principal: "w1", Role: rpc.RoleWorker}), desc, method, opts...)
}

func (l *life) connected() {
	if l.worker != nil {
		require.Eventually(l.t, func() bool { return l.worker.Ready() == nil }, planes.Hang, time.Millisecond)
	}
}

// quiet waits until nothing goes on, commands included but for those that wait for a file.
func (l *life) quiet() {
	for {
		l.call(func(context.Context) error { return l.w.Quiet() })
		if l.worker == nil || len(l.running(false)) == 0 {
			return
		}
		select { // real processes end on the machine's clock
		case <-l.t.Context().Done():
			require.FailNow(l.t, "a command does not end")
		case <-time.After(time.Millisecond):
		}
	}
}

// running returns the tasks of commands that have not ended: those that wait for a file, or
// those that do not.
func (l *life) running(held bool) (ids []string) {
	for _, t := range l.tasks() {
		name := awaited(t.GetCommand().GetCmd())
		if _, err := os.Stat(filepath.Join(l.dir, name)); t.GetEndedAt() == nil && t.GetCommand() != nil &&
			held == (name != "" && err != nil && t.GetState() != taskv1.TaskState_TASK_STATE_CANCELLING) {
			ids = append(ids, t.GetTaskId())
		}
	}
	return ids
}

// pass lets time pass. The worker sends heartbeats meanwhile.
func (l *life) pass(d time.Duration) {
	const stride = 5 * time.Second
	for ; d > 0; d -= stride {
		l.w.Clock.Advance(min(d, stride))
		if len(l.running(true)) > 0 {
			l.received.more(2)
		}
		l.quiet()
	}
}

// turn takes a turn, if there is one, and acts in it.
func (l *life) turn() bool {
	req := &agentv1.AcquireTurnRequest{RequestId: l.request(), RunnerId: "runner", Wait: durationpb.New(0)}
	var a *agentv1.AcquireTurnResponse
	if !l.runner(func(ctx context.Context) error {
		var err error
		a, err = l.w.Agents().AcquireTurn(ctx, req)
		return err
	}) {
		l.lost()
		return true
	}
	if a.GetPending() {
		return false
	}
	if l.unknown != "" && a.GetTurn().GetMessageId() == l.cut {
		require.Contains(l.t, a.GetContext().GetText(), l.unknown+": outcome unknown")
		l.unknown = ""
	}
	if l.k.what == "" {
		contexts.add(l.t.Name(), a.GetTurn().GetAgentId(), a.GetTurn().GetBoundWorkItemId(), a.GetContext().GetText())
	}
	l.note("=== turn %s of %s\n%s", a.GetTurn().GetTurnId(), a.GetTurn().GetAgentId(), a.GetContext().GetText())
	if !l.act(a) {
		l.cut = a.GetTurn().GetMessageId()
		l.lost()
	}
	return true
}

// lost is the loss of a runner: its turn's lease expires.
func (l *life) lost() {
	l.note("--- the runner is lost")
	l.pass(time.Minute) // the lease, and the pause before the next attempt
}

// killed reports whether the runner ends here.
func (l *life) killed() bool {
	l.points++
	return l.k.what == "runner" && l.points == l.k.at
}

// act goes on with a turn to its end, and returns false if the runner is lost in it.
func (l *life) act(a *agentv1.AcquireTurnResponse) bool {
	t, s := a.GetTurn(), sight{context: a.GetContext().GetText()}
	who := l.s.actor
	if t.GetAgentId() != keeper {
		who = l.s.child
	}
	const mostRounds = 20
	for index := range int32(mostRounds) {
		for l.next < len(l.s.outside) && l.s.outside[l.next].during != nil && l.s.outside[l.next].during(s) {
			l.next++
			l.s.outside[l.next-1].do(l)
			l.quiet()
		}
		if l.killed() {
			return false
		}
		m := who(s)
		req := &agentv1.SubmitRoundRequest{
			AgentId: t.GetAgentId(), TurnId: t.GetTurnId(), RunId: t.GetRunId(),
			RoundIndex: index, Text: m.text, ToolCalls: m.calls,
		}
		if m.summary != "" {
			req.ConversationSummary = &agentv1.ConversationSummary{Text: m.summary}
		}
		if m.local != nil && !l.runLocal(req, m.local) {
			return false
		}
		if m.text == "" && m.calls == nil && m.local == nil {
			return l.finish(t)
		}
		var r *agentv1.SubmitRoundResponse
		if !l.runner(func(ctx context.Context) error {
			var err error
			r, err = l.w.Agents().SubmitRound(ctx, req)
			return err
		}) || l.killed() {
			return false
		}
		before := len(s.turn)
		s.add(m, append(req.GetLocalToolResults(), r.GetToolResults()...), r.GetInterjections())
		l.note("%s", s.turn[before:])
		if r.GetTurnEnded() {
			return true
		}
		if m.calls == nil && m.local == nil && len(r.GetInterjections()) == 0 {
			return l.finish(t)
		}
	}
	require.FailNow(l.t, "the turn does not end")
	return false
}

// runLocal executes a tool of the runner's own, and adds its call and result to a round.
func (l *life) runLocal(req *agentv1.SubmitRoundRequest, c *agentv1.ToolCall) bool {
	c.CallId = fmt.Sprint("local-", req.GetRoundIndex())
	if !l.runner(func(ctx context.Context) error {
		return must.Err(l.w.Agents().StartLocalCalls(ctx, &agentv1.StartLocalCallsRequest{
			AgentId: req.GetAgentId(),
			TurnId:  req.GetTurnId(), RunId: req.GetRunId(), RoundIndex: req.GetRoundIndex(),
			Calls: []*agentv1.ToolCall{
				c,
			},
		}))
	}) {
		return false
	}
	l.unknown = c.GetName()
	if l.killed() {
		return false
	}
	answer, err := structpb.NewStruct(map[string]any{"answer": l.s.local[c.GetName()](l, c.GetArguments().AsMap())})
	require.NoError(l.t, err)
	if l.killed() {
		return false
	}
	l.unknown = ""
	req.LocalToolCalls = []*agentv1.ToolCall{c}
	req.LocalToolResults = []*agentv1.ToolResult{
		{
			CallId: c.GetCallId(), ToolName: c.GetName(), Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS,
			SummaryText: "done", Result: answer,
		},
	}
	return true
}

func (l *life) finish(t *agentv1.Turn) bool {
	return l.runner(func(ctx context.Context) error {
		return must.Err(l.w.Agents().FinishTurn(ctx, &agentv1.FinishTurnRequest{
			AgentId: t.GetAgentId(),
			TurnId:  t.GetTurnId(), RunId: t.GetRunId(), Outcome: agentv1.TurnOutcome_TURN_OUTCOME_COMPLETED,
		}))
	}) && !l.killed()
}
