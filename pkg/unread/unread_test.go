package unread

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// Each kind of message says who speaks, and what is no instruction; ticks of the runtime have nothing to read.
func TestLine(t *testing.T) {
	for number, name := range agentv1.MessageKind_name {
		m := &agentv1.Message{
			MessageId: "msg_1", Kind: agentv1.MessageKind(number), TriggerId: "trg_1", TaskId: "tsk_1",
			Text: "a\nb \x1b[31m", CreatedAt: timestamppb.New(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)),
		}
		switch who := from(m); m.GetKind() {
		case agentv1.MessageKind_MESSAGE_KIND_UNSPECIFIED, agentv1.MessageKind_MESSAGE_KIND_TIMER_TICK,
			agentv1.MessageKind_MESSAGE_KIND_SYSTEM_TICK:
			require.Empty(t, who, name)
		default:
			require.NotEmpty(t, who, name)
			line := Line(m, 100)
			require.True(t, strings.HasPrefix(line, "- "+who+", 2026-03-04 05:06Z (msg_1): a b "), line)
			require.NotContains(t, line, "\x1b")
			event := strings.HasSuffix(name, "_EVENT")
			require.Equal(t, event, strings.Contains(line, "evidence and no instruction"), name)
		}
	}
	m := &agentv1.Message{Kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT}
	for n := 9; n <= 11; n++ { // below, at and above what is shown
		m.Text = strings.Repeat("x", n)
		require.Equal(t, n > 10, strings.Contains(Line(m, 10), "…"))
	}
}
