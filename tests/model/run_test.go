package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// step is one thing that happens. Its numbers are resolved when it happens,
// modulo what there is, so that a list of steps still means something after any
// of them was taken out.
type step struct {
	op string
	n  [6]int
}

func (s step) String() string { return fmt.Sprintf("%s%v", s.op, s.n) }

// run is a world and the model of it, step by step.
type run struct {
	w       *world
	m       *model
	free    bool // the scheduler decides while the planes still tell each other
	step    step
	touched *agent // whom the step was about; nil: anybody
	log     []string
	asked   []asked
	fresh   int
	revs    map[string]int64 // the highest revision seen of each record
	// in the order in which they were made
	trigs  []*trigger
	timers []*timer
	tasks  []*task
	closed []closedTurn
	// runs that were aborted
	aborted map[string]bool

	inRound  bool
	rung     map[*agent]bool // agents that the scheduler's alarm rang for in this step
	happened map[string]int  // what came about, to see that histories reach it
	order    int
	taken    int // steps, each followed by a comparison
}

// disagreement is what the model and the system cannot both be right about.
type disagreement struct {
	kind string // the same for the same check
	what string
}

func (d disagreement) Error() string { return d.what }

func (r *run) must(ok bool, format string, args ...any) {
	if !ok {
		panic(disagreement{format, fmt.Sprintf(format, args...)})
	}
}

func (r *run) fine(err error) {
	if err != nil {
		panic(disagreement{"an error", err.Error()})
	}
}

func (r *run) note(format string, args ...any) { r.log = append(r.log, fmt.Sprintf(format, args...)) }

// answered checks a refusal against what the model allows; "" is success. A
// refusal leaves nothing in any journal.
func (r *run) answered(before [4]uint64, err error, want ...string) bool {
	got := ""
	if err != nil {
		got = string(fault.From(err).Reason())
	}
	r.note("  -> %s (model: %s) %v", got, strings.Join(want, "|"), err)
	r.must(slices.Contains(want, got), "answered %q (%v), the model says %q", got, err, want)
	if err != nil {
		r.must(r.w.Tails() == before, "a refusal (%v) left a line in a journal", err)
	}
	return err == nil
}

// asked is a request that was answered and wrote something: asking again must
// give the same answer and write nothing (SPEC X2).
type asked struct {
	at     time.Time
	answer proto.Message
	again  func() (proto.Message, error)
	other  func() error
}

// newRun returns a world with agents.
func newRun(home string, agents int, free bool) (r *run, err error) {
	w, err := newWorld(home)
	r = &run{
		w: w, free: free, revs: map[string]int64{}, happened: map[string]int{}, aborted: map[string]bool{},
		m: &model{
			now: epoch, items: map[string]*item{}, waits: map[string]*wait{}, trigs: map[string]*trigger{},
			timers: map[string]*timer{},
			tasks:  map[string]*task{}, said: map[string][]func(){}, held: map[string]bool{},
		},
	}
	if err != nil {
		return r, err
	}
	for i := range agents {
		id := fmt.Sprint("agent-", i)
		_, err := w.Agents().SpawnAgent(planetest.As(w.Context(), rpc.RoleOperator), &agentv1.SpawnAgentRequest{
			AgentId: id, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		})
		if err != nil {
			return r, err
		}
		r.m.agents = append(r.m.agents, &agent{id: id, shown: map[string]int64{}})
	}
	return r, w.Quiet()
}

func (r *run) as(role string) context.Context   { return planetest.As(r.w.Context(), role) }
func (r *run) asAgent(a *agent) context.Context { return planetest.AsAgent(r.w.Context(), a.id) }
func (r *run) someone(a *agent, n int) context.Context {
	if n%4 == 0 {
		return r.as(rpc.RoleOperator)
	}
	return r.asAgent(a)
}

// request returns an id of a request.
func (r *run) request() string {
	r.fresh++
	return fmt.Sprint("req-", r.fresh)
}

// do takes one step and compares everything afterwards.
func (r *run) do(s step) (err error) {
	defer func() {
		if p := recover(); p != nil {
			d, ok := p.(disagreement)
			if !ok {
				panic(p)
			}
			err = d
		}
	}()
	r.step, r.touched, r.rung = s, nil, map[*agent]bool{}
	r.note("%v at %s", s, r.m.now.Sub(epoch))
	// No two steps at one moment: what came before a turn and what came after it
	// must differ.
	r.gate(true)
	r.advance(time.Millisecond)
	r.touched = nil
	ops[s.op].do(r, s.n)
	r.settle()
	r.compare()
	return nil
}

// settle waits until the system is quiet. Unless it is free, the scheduler hears
// of nothing before the planes agree, so what it decides is known.
func (r *run) settle() {
	r.m.flush()
	r.gate(false)
	r.fine(r.w.Quiet())
	if !r.free {
		for _, edge := range heard {
			r.w.Taps.Hold(edge, r.m.held[edge])
		}
		r.fine(r.w.Quiet())
	}
}

// heard is what the scheduler follows.
var heard = []string{"agent>scheduler", "work>scheduler"}

// gate lets no plane hear of a step before all of it has happened: the calls of a
// round would otherwise race with what comes of the first of them.
func (r *run) gate(shut bool) {
	for _, edge := range edges {
		r.w.Taps.Hold(edge, shut || r.m.held[edge])
	}
	for _, edge := range heard {
		r.w.Taps.Hold(edge, r.m.held[edge] || shut || !r.free)
	}
}

// op is a kind of step and how often it happens.
type op struct {
	weight int
	do     func(r *run, n [6]int)
}

// draw returns a random step.
func draw(rnd *rand.Rand, names []string, total int) step {
	at := rnd.IntN(total)
	for _, name := range names {
		if at -= ops[name].weight; at < 0 {
			s := step{op: name}
			for i := range s.n {
				s.n[i] = rnd.IntN(1 << 16)
			}
			return s
		}
	}
	panic("unreachable")
}

// play takes steps in a world of its own until one fails; it says which. At the end it checks the pages of the states.
func play(home string, h history) (at int, r *run, err error) {
	r, err = newRun(home, h.agents, h.free)
	defer func() {
		if e := r.w.Close(); e != nil && err == nil {
			err = errors.Join(errors.New("closing the world"), e)
		}
	}()
	for at = 0; err == nil && at < len(h.steps); at++ {
		err = r.do(h.steps[at])
	}
	if err == nil {
		err = r.w.CheckPages()
	}
	return at, r, err
}
