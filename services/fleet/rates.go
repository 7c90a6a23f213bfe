package fleet

import (
	"time"

	"quartet/pkg/journal"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// rateTerm is the time over which turns and tokens are counted, in seconds.
const rateTerm = 60

// registry has the events of the agent plane.
var registry = journal.NewRegistry(agentv1.File_quartet_agent_v1_agent_event_proto)

// rate is what happened in one second.
type rate struct {
	second        int64
	turns         int32
	input, output int64
}

// rates are what happened in the last seconds, by second modulo rateTerm.
type rates [rateTerm]rate

// add counts something in a second.
func (r *rates) add(second int64, turns int32, input, output int64) {
	at := &r[second%rateTerm]
	if at.second != second {
		*at = rate{second: second}
	}
	at.turns += turns
	at.input += input
	at.output += output
}

// sum returns what was counted in the rateTerm seconds up to now.
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

// count counts an event of the agent plane.
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
