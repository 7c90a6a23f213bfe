// Package lane keeps the messages of one agent: the order in which turns take
// them, their states, and the records of those that are finished. It is pure: no
// clock, no I/O, no locks. The agent plane's state holds one Lane for each agent
// and changes it only while it applies an event.
package lane

import (
	"iter"
	"slices"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/packed"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

const (
	// bandCount is the number of priorities. Within a band messages are first in,
	// first out; only ticks let operators' prompts pass (SPEC A5, A5.5).
	bandCount = 4
	// keptMessages is how many finished messages of an agent stay in memory. Older
	// ones are in the journal and in the event stream.
	keptMessages = 256
	// MaxAttempts is how many turns may fail on a message before it is quarantined
	// (SPEC A5).
	MaxAttempts = 3
	// MaxProgressed is how many failed turns on a message are not counted because they
	// made progress, so that a message whose turns always fail after a first step ends
	// too (SPEC A5.6).
	MaxProgressed = 30
	// MaxQueued is how many messages an agent may have queued, so that a sender
	// in a loop cannot fill the memory.
	MaxQueued = 10_000
	// MaxQueuedBytes is how many bytes of text an agent's queued messages may have. The last message may exceed it.
	MaxQueuedBytes = 16 << 20
	// keptBytes is how many bytes of text in finished messages stay in memory. The newest one stays
	// whatever its size.
	keptBytes = 4 << 20
	// roomAfter is the time after which a message that was refused because of a full lane may be sent
	// again: turns have to take some first.
	roomAfter = 10 * time.Second
)

// Lane is the messages of one agent. The zero value is an empty lane. Records are
// replaced, never edited, so a record that was returned stays valid.
type Lane struct {
	bands    [bandCount][]*agentv1.Message           // queued, first in first out
	messages packed.Records[*agentv1.Message, codec] // in order of arrival; finished messages are its ended records
	queuedAt map[string]uint64                       // wal_seq of message_queued, until the message is finished
	// queuedBytes and finishedBytes are the bytes of text of the queued and of the finished messages.
	queuedBytes, finishedBytes int
	quarantined                int // how many finished messages are quarantined
}

// size returns the bytes of text of a message.
func size(m *agentv1.Message) int { return len(m.GetText()) + len(m.GetData()) }

func band(p agentv1.Priority) int {
	switch p {
	case agentv1.Priority_PRIORITY_INTERJECT:
		return 0
	case agentv1.Priority_PRIORITY_NEXT:
		return 1
	case agentv1.Priority_PRIORITY_BACKGROUND:
		return 3
	case agentv1.Priority_PRIORITY_UNSPECIFIED, agentv1.Priority_PRIORITY_NORMAL:
	}
	return 2
}

// ticksYield returns a band in which no system tick is before an operator's prompt (SPEC A5.5): a
// tick only says that there is work, and can say it after the prompt as well. Such a tick moves
// directly behind the last prompt; the order of all others stays.
func ticksYield(band []*agentv1.Message) []*agentv1.Message {
	last := len(band) - 1
	for last >= 0 && band[last].GetKind() != agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT {
		last--
	}
	var ticks []*agentv1.Message
	for _, m := range band[:last+1] {
		if isTick(m) {
			ticks = append(ticks, m)
		}
	}
	if len(ticks) == 0 {
		return band
	}
	out := slices.DeleteFunc(slices.Clone(band[:last+1]), isTick)
	return append(append(out, ticks...), band[last+1:]...)
}

func isTick(m *agentv1.Message) bool {
	return m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK
}

// Arrive adds a new message at the end of its band. If it is an operator's prompt, the ticks of the
// band move behind it (see ticksYield). walSeq is the position in the journal of the event that
// queued the message.
func (l *Lane) Arrive(m *agentv1.Message, walSeq uint64) {
	if l.queuedAt == nil {
		l.queuedAt = map[string]uint64{}
	}
	l.queuedAt[m.GetMessageId()] = walSeq
	l.messages.PutOpen(m)
	l.queuedBytes += size(m)
	b := band(m.GetPriority())
	l.bands[b] = append(l.bands[b], m)
	if m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT {
		l.bands[b] = ticksYield(l.bands[b])
	}
}

// Requeue puts a message whose turn ended without processing it at the front of its band; a tick
// goes behind the operator's prompts of its band.
func (l *Lane) Requeue(m *agentv1.Message) {
	l.unfinish(m.GetMessageId()) // in journals of before, a message is finished when it is interjected
	l.messages.PutOpen(m)
	l.queuedBytes += size(m)
	b := band(m.GetPriority())
	l.bands[b] = slices.Insert(slices.Clone(l.bands[b]), 0, m)
	if isTick(m) {
		l.bands[b] = ticksYield(l.bands[b])
	}
}

// Take removes a message from its band, since a turn takes it, and keeps its new record.
func (l *Lane) Take(m *agentv1.Message) {
	l.remove(m)
	l.messages.PutOpen(m)
}

// remove removes a message from its band.
func (l *Lane) remove(m *agentv1.Message) {
	b := band(m.GetPriority())
	l.bands[b] = slices.DeleteFunc(slices.Clone(l.bands[b]), func(q *agentv1.Message) bool {
		if q.GetMessageId() != m.GetMessageId() {
			return false
		}
		l.queuedBytes -= size(q)
		return true
	})
}

// Finish removes a message from its band and keeps its last record. Only the newest keptMessages
// finished messages stay in memory, and of these as many of the newest as have keptBytes together.
func (l *Lane) Finish(m *agentv1.Message) {
	l.remove(m)
	delete(l.queuedAt, m.GetMessageId())
	l.unfinish(m.GetMessageId())
	l.messages.PutEnded(m)
	l.countFinished(m, 1)
	for n := l.messages.EndedLen(); n > keptMessages || l.finishedBytes > keptBytes && n > 1; n-- {
		l.countFinished(l.messages.Drop(), -1)
	}
}

// unfinish subtracts a message from finishedBytes and quarantined if it is finished. Its record stays.
func (l *Lane) unfinish(messageID string) {
	if l.messages.IsOpen(messageID) {
		return
	}
	if m := l.Get(messageID); m != nil {
		l.countFinished(m, -1)
	}
}

// countFinished adds a finished message to finishedBytes and quarantined n times; n is 1 or -1.
func (l *Lane) countFinished(m *agentv1.Message, n int) {
	l.finishedBytes += n * size(m)
	if m.GetState() == agentv1.MessageState_MESSAGE_STATE_QUARANTINED {
		l.quarantined += n
	}
}

// Get returns the current record of a message, or nil if it is not in memory. That of a finished message may be a copy.
func (l *Lane) Get(messageID string) *agentv1.Message {
	m, _ := l.messages.Get(messageID)
	return m
}

// Head returns the message that the next turn takes, or nil.
func (l *Lane) Head() *agentv1.Message {
	for _, b := range l.bands {
		if len(b) > 0 {
			return b[0]
		}
	}
	return nil
}

// QueuedAt returns the wal_seq of the event that queued a message, or 0 if the
// message is finished or unknown.
func (l *Lane) QueuedAt(messageID string) uint64 { return l.queuedAt[messageID] }

// Interjections returns the queued messages of the priority interject, which a running turn receives.
func (l *Lane) Interjections() []*agentv1.Message { return l.bands[0] }

// Queued returns the queued messages in the order in which turns take them.
func (l *Lane) Queued() iter.Seq[*agentv1.Message] {
	return func(yield func(*agentv1.Message) bool) {
		for _, b := range l.bands {
			for _, m := range b {
				if !yield(m) {
					return
				}
			}
		}
	}
}

// Len returns how many messages are queued.
func (l *Lane) Len() int {
	n := 0
	for _, b := range l.bands {
		n += len(b)
	}
	return n
}

// Bytes returns how many bytes of text the queued messages have.
func (l *Lane) Bytes() int { return l.queuedBytes }

// Room returns OVERLOADED if a lane with the given numbers of queued messages and bytes of text takes no
// further message, and nil if it does.
func Room(agentID string, messages, bytes int) error {
	var e *fault.Error
	switch {
	case messages >= MaxQueued:
		e = fault.Overloaded.Newf(
			"agent %q has %d queued messages, the most there may be; wait until it has taken some", agentID, messages)
	case bytes >= MaxQueuedBytes:
		e = fault.Overloaded.Newf("agent %q has %d queued messages with %d bytes of text; at most %d bytes may be "+
			"queued; wait until it has taken some", agentID, messages, bytes, MaxQueuedBytes)
	default:
		return nil
	}
	return e.With("agent_id", agentID).WithRetryAfter(roomAfter)
}

// Heads returns the first message of each band that has one.
func (l *Lane) Heads() []*agentv1.Message {
	var out []*agentv1.Message
	for _, b := range l.bands {
		if len(b) > 0 {
			out = append(out, b[0])
		}
	}
	return out
}

// Arrived returns the messages in memory that arrived after the given one, oldest first; all messages if after is empty
// or no longer in memory.
func (l *Lane) Arrived(after string) []*agentv1.Message {
	all := l.messages.All()
	start := 0
	if after != "" {
		start = slices.IndexFunc(all, func(m *agentv1.Message) bool { return m.GetMessageId() == after }) + 1
	}
	return all[start:]
}

// LastQueuedAt returns the wal_seq of the event that queued the newest message that is not finished, 0 if there is
// none.
func (l *Lane) LastQueuedAt() (last uint64) {
	for _, at := range l.queuedAt {
		last = max(last, at)
	}
	return last
}

// Finished returns the finished messages in memory, in the order in which they finished.
func (l *Lane) Finished() []*agentv1.Message { return l.messages.Ended() }

// Quarantined returns how many of the finished messages in memory are quarantined.
func (l *Lane) Quarantined() int { return l.quarantined }

// Counts returns how many messages are queued, in the open turn, and quarantined.
func (l *Lane) Counts() *agentv1.Lane {
	c := &agentv1.Lane{Queued: int32(l.Len()), QueuedBytes: int64(l.queuedBytes), Quarantined: int32(l.quarantined)}
	for m := range l.messages.EachOpen() {
		if m.GetState() == agentv1.MessageState_MESSAGE_STATE_DEQUEUED {
			c.Dequeued++
		}
	}
	return c
}
