package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/services/agent/lane"
	"quartet/services/agent/runners"
	"quartet/services/agent/state"
)

func texts(all []*agentv1.Message) (out []string) {
	for _, m := range all {
		out = append(out, m.GetText())
	}
	return out
}

// A turn has all its interjections, and so has the next one if the turn is lost: however many
// they are, since more than the newest 256 finished messages are not in memory.
func TestA9_ManyInterjectionsAreNotLost(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	var all []string
	for i := range 300 {
		all = append(all, fmt.Sprint("word ", i))
		r.send("keeper", all[i], interject)
	}
	for range 2 {
		a := r.take("keeper")
		require.Equal(t, all, append([]string{a.GetMessage().GetText()}, texts(a.GetInterjections())...))
		require.Zero(t, r.facts("keeper").GetQueued())
		r.restart()
		require.Equal(t, agentv1.MessageState_MESSAGE_STATE_INTERJECTED,
			r.message("keeper", a.GetInterjections()[0].GetMessageId()).GetState())
		r.clk.Advance(runners.Term)
		r.eventually(func() bool { return r.facts("keeper").GetAgent().GetCurrentRunId() == "" })
		require.EqualValues(t, 300, r.facts("keeper").GetQueued())
	}
	a := r.take("keeper")
	r.finish(a, done)
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_INTERJECTED,
		r.message("keeper", a.GetInterjections()[298].GetMessageId()).GetState())
	require.True(t, r.poll().GetPending(), "they are finished with their turn")
	r.checkPages()
}

// A turn takes interjections of state.MaxInterjected bytes, at its beginning and over its rounds. The next turn takes
// what is beyond, of which no watcher of this one is told.
func TestA9_ATurnTakesNoMoreThanAMiB(t *testing.T) {
	r := newRig(t)
	r.spawn("keeper")
	for i := range 4 {
		r.send("keeper", fmt.Sprint(i, strings.Repeat("x", 250<<10)), interject)
	}
	a := r.take("keeper")
	require.Len(t, a.GetInterjections(), 3)
	w := r.watch(r.runner(), a, a.GetTurn().GetRunId())
	require.Empty(t, w.next().GetInterjections(), "an empty beginning")
	r.send("keeper", "4"+strings.Repeat("x", 250<<10), interject)
	require.Len(t, w.next().GetInterjections(), 1)
	beyond := r.send("keeper", "5"+strings.Repeat("x", 250<<10), interject)
	got := r.submit(a, 0, "a safe point").GetInterjections()
	require.Len(t, got, 1)
	require.Equal(t, "4", got[0].GetText()[:1])
	require.Empty(t, r.submit(a, 1, "another one").GetInterjections())
	require.Equal(t, agentv1.MessageState_MESSAGE_STATE_QUEUED, r.message("keeper", beyond).GetState())
	r.finish(a, retryable)
	require.Equal(t, agentv1.TurnState_TURN_STATE_FAILED, w.next().GetEnded().GetState())

	again := r.take("keeper")
	require.Equal(t, "0", again.GetMessage().GetText()[:1])
	require.Len(t, again.GetInterjections(), 4)
	r.finish(again, done)
	require.Equal(t, "5", r.take("keeper").GetMessage().GetText()[:1])
}

// The limit of a turn's interjections is in bytes of the journal.
func TestA9_TheBytesOfATurnsInterjections(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		times int
	}{
		"plain": {"x", 1}, "quotes": {`"`, 2}, "letters of two bytes": {"é", 2}, "control characters": {"\x01", 6},
		"markup": {"<", 6},
	} {
		one := lane.JournalBytes(&agentv1.Message{Text: strings.Repeat(c.text, 1000)})
		two := lane.JournalBytes(&agentv1.Message{Text: strings.Repeat(c.text, 2000)})
		require.Equal(t, 1000*len(c.text)*c.times, two-one, name)
	}
	for over, want := range map[int]int{-1: 5, 0: 5, 1: 4} {
		r := newRig(t)
		r.spawn("keeper")
		r.send("keeper", "go", normal)
		a := r.take("keeper")
		room := state.MaxInterjected + over
		var n int
		for range 4 {
			n = lane.JournalBytes(r.message("keeper", r.send("keeper", strings.Repeat("x", 200<<10), interject)))
			room -= n
		}
		// One letter is one byte, and the length of the text is encoded in as many bytes.
		last := r.send("keeper", strings.Repeat("x", 200<<10+room-n), interject)
		require.Equal(t, room, lane.JournalBytes(r.message("keeper", last)))
		require.Len(t, r.submit(a, 0, "a safe point").GetInterjections(), want, "%d bytes over the limit", over)
	}
}

// An agent with more in its lane than a command may write is deleted like every other one.
func TestA8_AFullLaneOfADeletedAgent(t *testing.T) {
	const count = 60
	r := newRig(t)
	r.spawn("keeper")
	for range count {
		r.send("keeper", strings.Repeat("x", 250<<10), normal)
	}
	resp, err := r.service.DeleteAgent(r.operator(), &agentv1.DeleteAgentRequest{AgentId: "keeper", RequestId: "req"})
	require.NoError(t, err)
	require.Equal(t, deleting, resp.GetAgent().GetLifecycle())
	r.restart()
	r.until(func() bool { return r.record("keeper").GetLifecycle() == deleted })
	dropped := map[string]bool{}
	for _, ev := range r.events() {
		if p, ok := ev.Payload.(*agentv1.MessageDropped); ok {
			require.False(t, dropped[p.GetMessage().GetMessageId()])
			dropped[p.GetMessage().GetMessageId()] = true
		}
	}
	require.Len(t, dropped, count)
}
