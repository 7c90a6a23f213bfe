package state

import (
	"google.golang.org/protobuf/proto"

	"quartet/pkg/packed"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// EndedTurns are the newest ended turns of an agent. All but a few are packed: what is read of them is a copy.
type EndedTurns = packed.Queue[*Turn, turnCodec]

// Decisions are the newest decisions about an agent.
type Decisions = packed.Queue[*agentv1.Decision, decisionCodec]

// turnCodec packs turns as an AgentPage with their pages. Whether a turn is found by its request is in no turn, but in
// State.AcquiredTurns.
type turnCodec struct{}

// Message implements packed.Codec.
func (turnCodec) Message(turns []*Turn) proto.Message {
	p := &agentv1.AgentPage{EndedTurns: slab[agentv1.TurnPage](len(turns))}
	for i, t := range turns {
		t.page(p.GetEndedTurns()[i])
	}
	return p
}

// New implements packed.Codec.
func (turnCodec) New() proto.Message { return &agentv1.AgentPage{} }

// Elements implements packed.Codec.
func (turnCodec) Elements(m proto.Message) (turns []*Turn, err error) {
	for _, p := range m.(*agentv1.AgentPage).GetEndedTurns() {
		t, err := turnFrom(p)
		if err != nil {
			return nil, err
		}
		turns = append(turns, t)
	}
	return turns, nil
}

// decisionCodec packs decisions as an AgentPage.
type decisionCodec struct{}

// Message implements packed.Codec.
func (decisionCodec) Message(all []*agentv1.Decision) proto.Message {
	return &agentv1.AgentPage{Decisions: all}
}

// New implements packed.Codec.
func (decisionCodec) New() proto.Message { return &agentv1.AgentPage{} }

// Elements implements packed.Codec.
func (decisionCodec) Elements(m proto.Message) ([]*agentv1.Decision, error) {
	return m.(*agentv1.AgentPage).GetDecisions(), nil
}
