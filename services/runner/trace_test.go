//go:build !nomodels

package runner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/tracing"
	"quartet/services/runner"
	"quartet/tests/collector"
	"quartet/tests/dev"
)

// The model's part of a turn is in the turn's trace, and nothing that was said.
func TestSight_TheModelIsPartOfTheTurn(t *testing.T) {
	c := collector.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.GRPC) // what `quartet run` listens to, and the server too
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	r := newRig(t)
	p := newProvider(t, runner.Anthropic, func(n int, _ asked) answer {
		if n == 0 {
			return answer{
				calls: []toolCall{{name: "CreateWorkItem", args: map[string]any{"objective": "the swordfish"}}},
			}
		}
		return answer{text: "at midnight"}
	})
	tracer, err := tracing.New(t.Context(), tracing.Config{Ratio: 1, Service: "quartet-runner"})
	require.NoError(t, err)
	r.say("tell me", agentv1.Priority_PRIORITY_NORMAL)
	require.NoError(t, r.run(p, func(cfg *runner.Config) { cfg.Tracer = tracer }))
	require.NoError(t, tracer.Stop(dev.Within(t)))
	trace := r.lastTurn().GetTraceparent()
	require.NotEmpty(t, trace)
	var chats []collector.Span
	var all []collector.Span
	require.Eventually(t, func() bool {
		all, chats = c.Spans(trace[3:35]), nil
		finished := false
		for _, s := range all {
			if s.GetName() == "chat test-model" {
				chats = append(chats, s)
			}
			finished = finished || s.GetName() == "turn"
		}
		return finished && len(chats) == 2
	}, time.Minute, 20*time.Millisecond)
	for _, chat := range chats {
		require.Equal(t, "quartet-runner", chat.Service)
		require.True(t, collector.Above(all, chat, "turn"))
		require.Equal(t, "anthropic", chat.Attribute("gen_ai.provider.name"))
		require.Equal(t, "25", chat.Attribute("gen_ai.usage.input_tokens"))
	}
	for _, s := range all {
		for _, said := range []string{"swordfish", "midnight", "tell me", "sk-secret-key"} {
			require.NotContains(t, s.String(), said)
		}
		if s.GetName() == "SubmitRound" {
			require.True(t, collector.Above(all, s, "turn"), "rounds carry the turn's trace by themselves")
		}
	}
}
