package lane

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// codec packs finished messages as a LanePage.
type codec struct{}

// Message implements packed.Codec.
func (codec) Message(all []*agentv1.Message) proto.Message { return &agentv1.LanePage{Messages: all} }

// New implements packed.Codec.
func (codec) New() proto.Message { return &agentv1.LanePage{} }

// Elements implements packed.Codec.
func (codec) Elements(m proto.Message) ([]*agentv1.Message, error) {
	return m.(*agentv1.LanePage).GetMessages(), nil
}

// ID implements packed.Named.
func (codec) ID(m *agentv1.Message) string { return m.GetMessageId() }

// Page returns the lane as it is now. The page shares the records, and nothing else that changes.
func (l *Lane) Page() *agentv1.LanePage {
	p := &agentv1.LanePage{EndedBytes: int64(l.finishedBytes), Quarantined: int32(l.quarantined)}
	p.Messages, p.Ended = l.messages.Page()
	p.QueuedAt = make([]uint64, len(p.GetMessages()))
	index := make(map[string]uint32, len(p.GetMessages()))
	for i, m := range p.GetMessages() {
		index[m.GetMessageId()], p.QueuedAt[i] = uint32(i), l.queuedAt[m.GetMessageId()]
	}
	for m := range l.Queued() {
		p.Queued = append(p.Queued, index[m.GetMessageId()])
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
	if err := l.restore(p); err != nil {
		return l, fmt.Errorf("messages of the lane: %w", err)
	}
	for i, m := range messages {
		if at := p.GetQueuedAt()[i]; at > 0 {
			if l.queuedAt == nil {
				l.queuedAt = map[string]uint64{}
			}
			l.queuedAt[m.GetMessageId()] = at
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
	return l, nil
}

// restore fills the messages of an empty lane. A page of format 2 has the finished ones among the others.
func (l *Lane) restore(p *agentv1.LanePage) error {
	if p.GetEnded() != nil {
		l.finishedBytes, l.quarantined = int(p.GetEndedBytes()), int(p.GetQuarantined())
		return l.messages.Restore(p.GetMessages(), p.GetEnded())
	}
	var finished []string
	for _, i := range p.GetFinished() {
		if int(i) >= len(p.GetMessages()) {
			return fmt.Errorf("message %d of %d is finished", i, len(p.GetMessages()))
		}
		m := p.GetMessages()[i]
		finished = append(finished, m.GetMessageId())
		l.countFinished(m, 1)
	}
	return l.messages.RestoreAll(p.GetMessages(), finished)
}
