package fleet

import (
	"time"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// rateTerm is for how many seconds turns and tokens are kept by the second.
const rateTerm = 60

// registry decodes the events of the agent plane.
var registry = journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto)

// rate has the counts of one second.
type rate struct {
	second        int64 // since 1970
	turns         int32 // that ended
	input, output int64 // tokens
}

// rates has the counts of the last rateTerm seconds, by second modulo rateTerm.
type rates [rateTerm]rate

// add adds to the counts of a second.
func (r *rates) add(second int64, turns int32, input, output int64) {
	at := &r[second%rateTerm]
	if at.second != second {
		*at = rate{second: second}
	}
	at.turns += turns
	at.input += input
	at.output += output
}

// sum returns the sums of the counts of the rateTerm seconds up to now.
func (r *rates) sum(now time.Time) (turns int32, input, output int64) {
	for _, at := range r {
		if at.second > now.Unix()-rateTerm {
			turns += at.turns
			input += at.input
			output += at.output
		}
	}
	return turns, input, output
}

// count adds an event of the agent plane to the rates of its namespace, if it ends a turn or reports tokens. It
// counts the event in the second in which the index reads it.
func (x *index) count(namespace, eventType string, line journal.Line) {
	turns, input, output := int32(0), int64(0), int64(0)
	switch eventType {
	case "turn_completed", "turn_failed", "turn_interrupted", "turn_aborted":
		turns = 1
	case "round_submitted":
		ev, err := line.Read(registry)
		if err != nil {
			return // the plane's own follower reports damage
		}
		if p, ok := ev.Payload.(*agentv1.RoundSubmitted); ok {
			input, output = p.GetRound().GetUsage().GetInputTokens(), p.GetRound().GetUsage().GetOutputTokens()
		}
	default:
		return
	}
	now := x.deps.Clock.Now().Unix()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of(namespace).rates.add(now, turns, input, output)
}
