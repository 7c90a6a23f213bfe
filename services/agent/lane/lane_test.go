package lane

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"quartet/pkg/fault"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// message returns a message whose name tells its kind: p… is an operator's prompt, t… a tick.
func message(name string) *agentv1.Message {
	kind := agentv1.MessageKind_MESSAGE_KIND_CHANNEL_EVENT
	switch name[0] {
	case 'p':
		kind = agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT
	case 't':
		kind = agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK
	}
	return &agentv1.Message{MessageId: name, Kind: kind, Priority: agentv1.Priority_PRIORITY_NORMAL}
}

func order(l *Lane) string {
	var names []string
	for m := range l.Queued() {
		names = append(names, m.GetMessageId())
	}
	return strings.Join(names, " ")
}

// A tick lets prompts pass, whenever they arrive; nothing else changes its place.
func TestA5_APromptPassesATick(t *testing.T) {
	for _, c := range []struct{ arrive, requeue, want string }{
		{"t1 p1", "", "p1 t1"},
		{"t1 c1", "", "t1 c1"},
		{"p1 t1", "", "p1 t1"},
		{"c1 t1 c2 p1 c3", "", "c1 c2 p1 t1 c3"},
		{"t1 p1 c1 p2", "", "p1 c1 p2 t1"},
		{"t1 t2 p1", "", "p1 t1 t2"},
		{"c1 p1 c2", "t1", "c1 p1 t1 c2"},
		{"c1 c2", "t1", "t1 c1 c2"},
		{"t1 c1", "p1", "p1 t1 c1"},
		{"t1 p1", "c1", "c1 p1 t1"},
	} {
		l := &Lane{}
		for i, name := range strings.Fields(c.arrive) {
			l.Arrive(message(name), uint64(i+1))
		}
		if c.requeue != "" {
			l.Requeue(message(c.requeue))
		}
		require.Equal(t, c.want, order(l), c.arrive)
	}
	l := &Lane{}
	l.Arrive(message("t1"), 1)
	next := message("p1")
	next.Priority = agentv1.Priority_PRIORITY_BACKGROUND
	l.Arrive(next, 2)
	require.Equal(t, "t1 p1", order(l), "a prompt of another priority passes nothing")
}

// Whatever arrives and is taken: no tick is before a prompt, and all but ticks are first in, first out.
func TestA5_RandomLanes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l, n := &Lane{}, 0
		var others []string
		for _, step := range rapid.SliceOf(rapid.SampledFrom([]string{"c", "p", "t", "take", "fail"})).
			Draw(rt, "steps") {
			head := l.Head()
			switch step {
			case "take", "fail":
				if head == nil {
					continue
				}
				l.Take(head)
				others = slices.DeleteFunc(others, func(o string) bool { return o == head.GetMessageId() })
				if step == "fail" {
					l.Requeue(head)
					if !isTick(head) {
						others = slices.Insert(others, 0, head.GetMessageId())
					}
				}
			default:
				n++
				m := message(step + strings.Repeat("i", n))
				l.Arrive(m, uint64(n))
				if !isTick(m) {
					others = append(others, m.GetMessageId())
				}
			}
			got := strings.Fields(order(l))
			ticks := slices.DeleteFunc(slices.Clone(got), func(o string) bool { return o[0] != 't' })
			for i, name := range got {
				if name[0] == 't' && slices.ContainsFunc(got[i:], func(o string) bool { return o[0] == 'p' }) {
					rt.Fatalf("a tick is before a prompt: %v", got)
				}
			}
			if rest := slices.DeleteFunc(got, func(o string) bool { return o[0] == 't' }); !slices.Equal(rest, others) {
				rt.Fatalf("got %v, want %v (ticks %v)", rest, others, ticks)
			}
		}
	})
}

// A5.3: a lane has room below its limits of messages and bytes, and none at them.
func TestA5_RoomInALane(t *testing.T) {
	for _, c := range []struct {
		messages, bytes int
		room            bool
	}{
		{0, 0, true},
		{MaxQueued - 1, MaxQueuedBytes - 1, true},
		{MaxQueued, 0, false},
		{MaxQueued + 1, 0, false},
		{1, MaxQueuedBytes, false},
		{1, MaxQueuedBytes + 1, false},
	} {
		err := Room("keeper", c.messages, c.bytes)
		require.Equal(t, c.room, err == nil, "%+v", c)
		if err != nil {
			require.ErrorIs(t, err, fault.Overloaded)
			require.Positive(t, fault.From(err).RetryAfter())
		}
	}
}

// Whatever is done with messages, the bytes of a lane are those of its queued messages, and what is kept of
// finished ones is bounded by bytes as well.
func TestA5_BytesOfALane(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l, n := &Lane{}, 0
		var taken []*agentv1.Message
		rt.Repeat(map[string]func(*rapid.T){
			"arrive": func(rt *rapid.T) {
				n++
				m := message("c" + strconv.Itoa(n))
				m.Text = strings.Repeat("x", rapid.SampledFrom([]int{0, 1, 1 << 20, keptBytes, keptBytes + 1}).
					Draw(rt, "size"))
				if n%3 == 0 {
					m.Text, m.Data = "", []byte(m.GetText())
				}
				l.Arrive(m, uint64(n))
			},
			"take": func(*rapid.T) {
				if m := l.Head(); m != nil {
					l.Take(m)
					taken = append(taken, m)
				}
			},
			"requeue": func(*rapid.T) {
				if len(taken) > 0 {
					l.Requeue(taken[0])
					taken = taken[1:]
				}
			},
			"finish": func(*rapid.T) {
				if len(taken) > 0 {
					l.Finish(taken[0])
					taken = taken[1:]
				} else if m := l.Head(); m != nil {
					l.Finish(m)
				}
			},
			"interjected and back": func(*rapid.T) {
				if m := l.Head(); m != nil {
					l.Finish(m)
					if l.Get(m.GetMessageId()) != nil {
						l.Requeue(m)
					}
				}
			},
			"": func(rt *rapid.T) {
				queued, kept := 0, 0
				for m := range l.Queued() {
					queued += size(m)
				}
				for _, m := range l.Finished() {
					kept += size(m)
				}
				require.Equal(rt, queued, l.Bytes())
				require.EqualValues(rt, queued, l.Counts().GetQueuedBytes())
				require.Equal(rt, kept, l.finishedBytes)
				require.True(rt, kept <= keptBytes || l.messages.EndedLen() == 1, "%d bytes of %d messages", kept,
					l.messages.EndedLen())
			},
		})
	})
}

// plain is a lane's messages without anything packed.
type plain struct {
	records  map[string]*agentv1.Message
	arrivals []string
	finished []string
}

func (p *plain) finish(m *agentv1.Message) {
	p.records[m.GetMessageId()] = m
	p.finished = append(p.finished, m.GetMessageId())
	bytes := func() (n int) {
		for _, id := range p.finished {
			n += size(p.records[id])
		}
		return n
	}
	for len(p.finished) > keptMessages || bytes() > keptBytes && len(p.finished) > 1 {
		oldest := p.finished[0]
		p.finished = p.finished[1:]
		delete(p.records, oldest)
		p.arrivals = slices.DeleteFunc(p.arrivals, func(id string) bool { return id == oldest })
	}
}

// Whether a finished message is packed is seen by nobody, and a lane that is read from its page, or from one of format
// 2, is the same.
func TestA5_FinishedMessagesArePacked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Lane
		p := plain{records: map[string]*agentv1.Message{}}
		var taken []string // and not finished
		n := 0
		steps, sizes := rapid.SampledFrom([]int{10, 10, 30, 30, 30, 30, 30, 30, 100, 700}).Draw(t, "steps"),
			[]int{0, 10}
		if steps == 100 {
			sizes = []int{10, 10, 10, keptBytes / 8}
		}
		for range steps {
			switch step := rapid.IntRange(0, 20).Draw(t, "step"); {
			case step == 0 && len(p.finished) > 0: // a turn was lost: what was interjected into it is queued again
				at := rapid.IntRange(max(0, len(p.finished)-rapid.SampledFrom([]int{3, 300}).Draw(t, "near")),
					len(p.finished)-1).Draw(t, "again")
				m := proto.CloneOf(p.records[p.finished[at]])
				m.State = agentv1.MessageState_MESSAGE_STATE_QUEUED
				p.finished = slices.Delete(p.finished, at, at+1)
				p.records[m.GetMessageId()] = m
				l.Requeue(m)
			case step < 9:
				n++
				m := message("c" + strconv.Itoa(n))
				m.Text = strings.Repeat("x", rapid.SampledFrom(sizes).Draw(t, "size"))
				m.State = agentv1.MessageState_MESSAGE_STATE_QUEUED
				p.records[m.GetMessageId()], p.arrivals = m, append(p.arrivals, m.GetMessageId())
				l.Arrive(m, uint64(n))
			case step < 11:
				if m := l.Head(); m != nil {
					m = proto.CloneOf(m)
					m.State = agentv1.MessageState_MESSAGE_STATE_DEQUEUED
					p.records[m.GetMessageId()] = m
					taken = append(taken, m.GetMessageId())
					l.Take(m)
				}
			default:
				m := l.Head()
				if len(taken) > 0 {
					m, taken = l.Get(taken[0]), taken[1:]
				}
				if m != nil {
					m = proto.CloneOf(m)
					m.State = rapid.SampledFrom([]agentv1.MessageState{
						agentv1.MessageState_MESSAGE_STATE_PROCESSED,
						agentv1.MessageState_MESSAGE_STATE_QUARANTINED,
					}).Draw(t, "state")
					p.finish(m)
					l.Finish(m)
				}
			}
		}
		check := func(l *Lane) {
			ids := func(all []*agentv1.Message) []string {
				out := []string{}
				for _, m := range all {
					require.True(t, proto.Equal(p.records[m.GetMessageId()], m))
					out = append(out, m.GetMessageId())
				}
				return out
			}
			require.Equal(t, append([]string{}, p.finished...), ids(l.Finished()))
			require.Equal(t, append([]string{}, p.arrivals...), ids(l.Arrived("")))
			require.Equal(t, append([]string{}, p.arrivals...), ids(l.Arrived("none")))
			if len(p.arrivals) > 0 {
				at := rapid.IntRange(0, len(p.arrivals)-1).Draw(t, "after")
				require.Equal(t, append([]string{}, p.arrivals[at+1:]...), ids(l.Arrived(p.arrivals[at])))
			}
			counts, last := &agentv1.Lane{Queued: int32(l.Len()), QueuedBytes: int64(l.Bytes())}, uint64(0)
			for _, id := range p.arrivals {
				m := p.records[id]
				require.True(t, proto.Equal(m, l.Get(id)), id)
				switch m.GetState() {
				case agentv1.MessageState_MESSAGE_STATE_DEQUEUED:
					counts.Dequeued++
				case agentv1.MessageState_MESSAGE_STATE_QUARANTINED:
					counts.Quarantined++
				}
				last = max(last, l.QueuedAt(id))
			}
			require.True(t, proto.Equal(counts, l.Counts()), "%v %v", counts, l.Counts())
			require.EqualValues(t, counts.GetQuarantined(), l.Quarantined())
			require.Equal(t, last, l.LastQueuedAt())
			require.Nil(t, l.Get("none"))
		}
		check(&l)
		read := must.Value(FromPage(proto.CloneOf(l.Page())))(t)
		require.NoError(t, journaltest.Same(l, read))
		old := &agentv1.LanePage{}
		index := map[string]uint32{}
		for i, id := range p.arrivals {
			index[id], old.Messages, old.QueuedAt = uint32(i), append(old.GetMessages(), p.records[id]),
				append(old.GetQueuedAt(), l.QueuedAt(id))
		}
		for m := range l.Queued() {
			old.Queued = append(old.GetQueued(), index[m.GetMessageId()])
		}
		for _, id := range p.finished {
			old.Finished = append(old.GetFinished(), index[id])
		}
		read = must.Value(FromPage(old))(t)
		check(&read)
		require.Equal(t, order(&l), order(&read))
	})
}
