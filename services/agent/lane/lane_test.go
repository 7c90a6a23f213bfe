package lane

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quartet/pkg/fault"
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
		for _, step := range rapid.SliceOf(rapid.SampledFrom([]string{"c", "p", "t", "take", "fail"})).Draw(rt, "steps") {
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
		{0, 0, true}, {MaxQueued - 1, MaxQueuedBytes - 1, true}, {MaxQueued, 0, false}, {MaxQueued + 1, 0, false},
		{1, MaxQueuedBytes, false}, {1, MaxQueuedBytes + 1, false},
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
				m.Text = strings.Repeat("x", rapid.SampledFrom([]int{0, 1, 1 << 20, keptBytes, keptBytes + 1}).Draw(rt, "size"))
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
				for m := range l.Finished() {
					kept += size(m)
				}
				require.Equal(rt, queued, l.Bytes())
				require.EqualValues(rt, queued, l.Counts().GetQueuedBytes())
				require.Equal(rt, kept, l.finishedBytes)
				require.True(rt, kept <= keptBytes || len(l.finished) == 1, "%d bytes of %d messages", kept, len(l.finished))
			},
		})
	})
}
