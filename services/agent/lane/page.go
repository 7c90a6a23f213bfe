package lane

import (
	"fmt"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Page returns the lane as it is now. The page shares the records, and nothing else.
func (l *Lane) Page() *agentv1.LanePage {
	n := len(l.arrivals)
	p := &agentv1.LanePage{Messages: make([]*agentv1.Message, n), QueuedAt: make([]uint64, n), Finished: make([]uint32, len(l.finished))}
	index := make(map[string]uint32, n)
	for i, id := range l.arrivals {
		index[id], p.Messages[i], p.QueuedAt[i] = uint32(i), l.records[id], l.queuedAt[id]
	}
	for m := range l.Queued() {
		p.Queued = append(p.Queued, index[m.GetMessageId()])
	}
	for i, id := range l.finished {
		p.Finished[i] = index[id]
	}
	return p
}

// FromPage returns the lane that a page has. It keeps the page's records.
func FromPage(p *agentv1.LanePage) (Lane, error) {
	var l Lane
	messages := p.GetMessages()
	if len(p.GetQueuedAt()) != len(messages) {
		return l, fmt.Errorf("the lane has %d messages, and %d positions of them", len(messages), len(p.GetQueuedAt()))
	}
	for i, m := range messages {
		id := m.GetMessageId()
		if id == "" || l.records[id] != nil {
			return l, fmt.Errorf("message %d of the lane has no id, or that of another one: %q", i, id)
		}
		l.arrivals = append(l.arrivals, id)
		l.record(m)
		if at := p.GetQueuedAt()[i]; at > 0 {
			if l.queuedAt == nil {
				l.queuedAt = map[string]uint64{}
			}
			l.queuedAt[id] = at
		}
	}
	for _, i := range p.GetQueued() {
		if int(i) >= len(messages) {
			return l, fmt.Errorf("message %d of %d is queued", i, len(messages))
		}
		m := messages[i]
		b := band(m.GetPriority())
		l.bands[b] = append(l.bands[b], m)
		l.queuedBytes += size(m)
	}
	for _, i := range p.GetFinished() {
		if int(i) >= len(messages) {
			return l, fmt.Errorf("message %d of %d is finished", i, len(messages))
		}
		l.finished = append(l.finished, messages[i].GetMessageId())
		l.finishedBytes += size(messages[i])
	}
	return l, nil
}
