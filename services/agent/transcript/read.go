package transcript

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Read reads rounds back from the journal. Each entry of positions has the wal_seqs of one round's events, as
// Index.Round returns them; the rounds are returned in the same order. A round of which an event was removed is nil.
func Read[S journal.State](ctx context.Context, p *journal.Partition[S], positions [][]uint64) ([]*agentv1.Round,
	error,
) {
	events, err := journal.ReadBack(ctx, p, slices.Concat(positions...))
	if err != nil {
		return nil, err
	}
	out := make([]*agentv1.Round, 0, len(positions))
	for _, at := range positions {
		var r *agentv1.Round
		if of := events[:len(at)]; !slices.ContainsFunc(of, (*journal.Event).Removed) {
			if r, err = Fold(of); err != nil {
				return nil, err
			}
		}
		out, events = append(out, r), events[len(at):]
	}
	return out, nil
}

// Fold builds a round from its events, none of which may be removed. If the first event is LocalCallsStarted, all
// must be: their round was not submitted, and the result has the calls that they started and nothing else.
func Fold(events []*journal.Event) (*agentv1.Round, error) {
	if _, ok := events[0].Payload.(*agentv1.LocalCallsStarted); ok {
		return started(events)
	}
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

// started builds a round that was not submitted, from the events by which its runner started calls.
func started(events []*journal.Event) (*agentv1.Round, error) {
	r := &agentv1.Round{}
	for _, ev := range events {
		p, ok := ev.Payload.(*agentv1.LocalCallsStarted)
		if !ok {
			return nil, fault.InternalError.Newf("wal_seq %d starts no calls", ev.WalSeq)
		}
		r.TurnId, r.Index = p.GetTurnId(), p.GetRoundIndex()
		r.LocalToolCalls = append(r.LocalToolCalls, p.GetCalls()...)
	}
	return r, nil
}
