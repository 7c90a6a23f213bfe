package agent

import (
	"context"
	"encoding/binary"
	"quartet/services/agent/ref"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/plane"
	"quartet/pkg/rpc"
)

// keptWhole is how many ended turns keep their rounds in memory: for a runner
// that asks again, and for the trace in the next context. A round may have half
// a megabyte, so all others are read back from the journal.
const keptWhole = 2

// transcript says where in the journal an agent's rounds are. A round is the
// event of its submission and those of its results; their wal_seqs stand as
// distances, a few bytes each, so that a life of weeks costs its agent less
// than its last turn (SPEC C2).
type transcript struct {
	last  uint64
	steps []byte           // of all events, in order: the distance, doubled, plus 1 where a round begins
	marks []int            // offset into steps of every markEvery-th round, and the wal_seq before it
	bases []uint64         // beside marks
	count int              // rounds
	items map[string][]int // rounds by the item they were bound to
	turns []turnSpan       // in order
}

// turnSpan is where a turn's rounds are.
type turnSpan struct {
	id          string
	from, count int
	end         uint64 // wal_seq of the event that ended it
}

// markEvery bounds how far a look into the middle has to walk.
const markEvery = 64

func (t *transcript) began(turnID string) {
	t.turns = append(t.turns, turnSpan{id: turnID, from: t.count})
}

func (t *transcript) ended(walSeq uint64) {
	if n := len(t.turns); n > 0 {
		t.turns[n-1].end = walSeq
	}
}

// submitted begins a round.
func (t *transcript) submitted(walSeq uint64, itemID string) {
	if t.count%markEvery == 0 {
		t.marks, t.bases = append(t.marks, len(t.steps)), append(t.bases, t.last)
	}
	t.add(walSeq, 1)
	if itemID != "" {
		if t.items == nil {
			t.items = map[string][]int{}
		}
		t.items[itemID] = append(t.items[itemID], t.count)
	}
	t.count++
	if n := len(t.turns); n > 0 {
		t.turns[n-1].count++
	}
}

// more belongs to the newest round.
func (t *transcript) more(walSeq uint64) { t.add(walSeq, 0) }

func (t *transcript) add(walSeq, begins uint64) {
	t.steps = binary.AppendUvarint(t.steps, (walSeq-t.last)<<1|begins)
	t.last = walSeq
}

// round gives the coordinates of the events of the n-th round.
func (t *transcript) round(n int) []uint64 {
	at, seq := t.marks[n/markEvery], t.bases[n/markEvery]
	var out []uint64
	for i := n - n%markEvery - 1; at < len(t.steps); {
		step, size := binary.Uvarint(t.steps[at:])
		if step&1 == 1 {
			if i++; i > n {
				break
			}
		}
		at, seq = at+size, seq+step>>1
		if i == n {
			out = append(out, seq)
		}
	}
	return out
}

// span finds a turn.
func (t *transcript) span(turnID string) (turnSpan, bool) {
	i := slices.IndexFunc(t.turns, func(s turnSpan) bool { return s.id == turnID })
	if i < 0 {
		return turnSpan{}, false
	}
	return t.turns[i], true
}

// chosen are the rounds that a list is about, newest first.
func (t *transcript) chosen(turnID, itemID string) []int {
	from, to := 0, t.count
	if turnID != "" {
		s, ok := t.span(turnID)
		if !ok {
			return nil
		}
		from, to = s.from, s.from+s.count
	}
	var out []int
	if itemID != "" {
		for _, n := range slices.Backward(t.items[itemID]) {
			if n >= from && n < to {
				out = append(out, n)
			}
		}
		return out
	}
	for n := to - 1; n >= from; n-- {
		out = append(out, n)
	}
	return out
}

// slim lets go of the rounds that are read back when they are asked for.
func (a *agentState) slim() {
	if n := len(a.turns) - 1 - keptWhole; n >= 0 {
		a.turns[n].rounds, a.turns[n].settled = nil, nil
	}
}

// readRounds reads rounds back, in the order of their coordinates.
func (s *Service) readRounds(ctx context.Context, k key, coordinates [][]uint64) ([]*agentv1.Round, error) {
	events, err := journal.ReadBack(ctx, s.engine.For(k.Namespace, k.ID), slices.Concat(coordinates...))
	if err != nil {
		return nil, err
	}
	out := make([]*agentv1.Round, 0, len(coordinates))
	for _, c := range coordinates {
		r, err := folded(events[:len(c)])
		if err != nil {
			return nil, err
		}
		out, events = append(out, r), events[len(c):]
	}
	return out, nil
}

// folded is a round as its events made it.
func folded(events []*journal.Event) (*agentv1.Round, error) {
	submitted, ok := events[0].Payload.(*agentv1.RoundSubmitted)
	if !ok {
		return nil, fault.InternalError.Newf("wal_seq %d is no round", events[0].WalSeq)
	}
	r := proto.CloneOf(submitted.GetRound())
	for _, ev := range events[1:] {
		switch p := ev.Payload.(type) {
		case *agentv1.ToolResultRecorded:
			r.ToolResults = append(r.ToolResults, p.GetResult())
		case *agentv1.RoundSettled:
			r.Settled = true
		}
	}
	return r, nil
}

// endedTurnAt reads the record of a turn that is in memory no more.
func (s *Service) endedTurnAt(ctx context.Context, k key, walSeq uint64) (*agentv1.Turn, error) {
	events, err := journal.ReadBack(ctx, s.engine.For(k.Namespace, k.ID), []uint64{walSeq})
	if err != nil {
		return nil, err
	}
	return endedTurn(events), nil
}

// GetTurn reads a turn with its rounds, however long ago it was.
func (s *Service) GetTurn(ctx context.Context, req *agentv1.GetTurnRequest) (*agentv1.GetTurnResponse, error) {
	actor := rpc.ActorFrom(ctx)
	if err := admitRead(actor, req.GetAgentId()); err != nil {
		return nil, err
	}
	k := ref.Agent{Namespace: actor.Namespace, ID: req.GetAgentId()}
	var rounds [][]uint64
	var end uint64
	resp, _, err := plane.View(ctx, s.engine, k.ID, func(st *State) (*agentv1.GetTurnResponse, error) {
		rounds, end = nil, 0 // a look may run again
		a, err := st.agent(k.Namespace, k.ID)
		if err != nil {
			return nil, err
		}
		span, known := a.transcript.span(req.GetTurnId())
		if !known {
			return nil, fault.NotFound.Newf("agent %q has no turn %q", req.GetAgentId(), req.GetTurnId())
		}
		t := a.find(req.GetTurnId())
		if t != nil && len(t.rounds) == span.count {
			return &agentv1.GetTurnResponse{Turn: t.rec, Rounds: slices.Clone(t.rounds)}, nil
		}
		for n := span.from; n < span.from+span.count; n++ {
			rounds = append(rounds, a.transcript.round(n))
		}
		if t != nil {
			return &agentv1.GetTurnResponse{Turn: t.rec}, nil
		}
		end = span.end
		return &agentv1.GetTurnResponse{}, nil
	})
	if err != nil {
		return nil, err
	}
	if end != 0 {
		if resp.Turn, err = s.endedTurnAt(ctx, k, end); err != nil {
			return nil, err
		}
	}
	if rounds != nil {
		resp.Rounds, err = s.readRounds(ctx, k, rounds)
	}
	return resp, err
}
