package tests

import (
	"context"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	"quartet/pkg/tracing"
	"quartet/services/app"
	"quartet/tests/collector"
	"quartet/tests/proc"
)

// sightWays is eachWay with a collector that all processes send to, and their logs.
// Nothing is traced but what callers trace: the ratio is 0.
func sightWays(t *testing.T, body func(t *testing.T, ctx context.Context, s *system, c *collector.Collector,
	logs *observer.ObservedLogs),
) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	ways := map[string]func(*testing.T, func(*testing.T, app.Config) *app.App) *system{
		"one process": oneProcessWith,
		"split over TCP": func(t *testing.T, start func(*testing.T, app.Config) *app.App) *system {
			return splitWith(t, false, start)
		},
		"split over TCP, asked at the gateway's process": func(t *testing.T,
			start func(*testing.T, app.Config) *app.App,
		) *system {
			return splitWith(t, true, start)
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c := collector.Start(t)
			core, logs := observer.New(zapcore.DebugLevel)
			s := way(t, func(t *testing.T, cfg app.Config) *app.App {
				cfg.OTLPEndpoint, cfg.ServiceName = c.GRPC, "quartet"
				if len(cfg.Serve) > 0 {
					cfg.ServiceName = "quartet-" + cfg.Serve[0]
				}
				return startLogged(t, cfg, zap.New(core))
			})
			body(t, ctx, s, c, logs)
		})
	}
}

const (
	knownTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	knownSpan  = "00f067aa0ba902b7"
	known      = "00-" + knownTrace + "-" + knownSpan + "-01"
)

// postTraced calls a trigger as part of a trace.
func postTraced(t *testing.T, ctx context.Context, url string) {
	req := must.Value(http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}")))(t)
	req.Header.Set("Traceparent", known)
	resp := must.Value(http.DefaultClient.Do(req))(t)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

// waitsForTheWorld brings an agent to where only a call of its trigger moves it on.
func waitsForTheWorld(t *testing.T, ctx context.Context, s *system) (item, url string) {
	s.spawn(t, ctx, "keeper")
	s.say(t, ctx, "keeper", "wait for the world")
	tn := s.acquire(t, ctx, "keeper")
	require.Empty(t, tn.got.GetTurn().GetTraceparent(), "nobody traces this")
	r := tn.round(t, ctx, "", tool(t, "CreateWorkItem", map[string]any{"objective": "wait for the world"}))
	item = at(r.GetToolResults()[0], "work_item", "work_item_id")
	r = tn.round(t, ctx, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}),
		tool(t, "CreateExternalTrigger", map[string]any{}))
	url = at(r.GetToolResults()[1], "url")
	tn.round(t, ctx, "",
		tool(t, "WaitFor", map[string]any{"wake": "external", "resource": at(r.GetToolResults()[1], "trigger",
			"trigger_id"), "reason": "the world"}))
	// Looks that this turn's events cause are no part of any trace, and one of them
	// might see what comes next.
	require.Eventually(t, func() bool {
		e, err := s.scheduler.Explain(ctx, &schedulerv1.ExplainRequest{AgentId: "keeper"})
		return err == nil && e.GetVerdict().GetAction() == agentv1.DecisionAction_DECISION_ACTION_IDLE
	}, time.Minute, 10*time.Millisecond)
	<-time.After(200 * time.Millisecond)
	return item, url
}

// One trace shows the delivery of a trigger and everything that it caused, across planes
// and processes (SPEC X10, X13).
func TestSight_OneTraceFromTriggerToCommand(t *testing.T) {
	proc.Long(t)
	sightWays(t, func(t *testing.T, ctx context.Context, s *system, c *collector.Collector,
		logs *observer.ObservedLogs,
	) {
		item, url := waitsForTheWorld(t, ctx, s)
		postTraced(t, ctx, url)

		tn := s.acquire(t, ctx, "keeper")
		traceparent := tn.got.GetTurn().GetTraceparent()
		require.Contains(t, traceparent, knownTrace, "the turn is part of the call's trace")
		require.Contains(t, tn.got.GetMessage().GetTraceparent(), knownTrace)
		traced := metadata.AppendToOutgoingContext(ctx, "traceparent", traceparent)
		tn.round(t, traced, "", tool(t, "PickWorkItem", map[string]any{"work_item_id": item}),
			tool(t, "UpdateWorkItem", map[string]any{"blocked_by": nil}))
		// A runner that knows nothing of traces: its round is in the turn's all the same.
		r := tn.round(t, ctx, "",
			tool(t, "ExecCommand", map[string]any{"cmd": "echo it is $TRACEPARENT", "yield_time": "20s"}))
		require.Contains(t, at(r.GetToolResults()[0], "output"), "it is 00-"+knownTrace+"-", "commands can take part")
		tr := tn.got.GetTurn()
		must.Value(s.agents.FinishTurn(traced, &agentv1.FinishTurnRequest{
			AgentId: "keeper", TurnId: tr.GetTurnId(), RunId: tr.GetRunId(),
		}))(t)

		chain := [][2]string{ // a span, and one that is above it
			{"DeliverTrigger", "POST /v1/triggers/{token}"},
			{"journal waiting", "DeliverTrigger"},
			{"work handles wait_triggered", "journal waiting"},
			{"schedule", "work handles wait_triggered"},
			{"OfferDecision", "schedule"},
			{"journal agent", "OfferDecision"},
			{"turn", "OfferDecision"},
			{"SubmitRound", "turn"},
			{"round", "turn"},
			{"execute_tool UpdateWorkItem", "SubmitRound"},
			{"UpdateWorkItem", "execute_tool UpdateWorkItem"},
			{"journal work", "UpdateWorkItem"},
			{"execute_tool ExecCommand", "round"},
			{"ExecCommand", "execute_tool ExecCommand"},
			{"journal task", "ExecCommand"},
			{"command", "journal task"},
			{"FinishTurn", "turn"},
			{"finish", "FinishTurn"},
		}
		var spans []collector.Span
		missing := func() string {
			spans = c.Spans(knownTrace)
			for _, link := range chain {
				if !hasBelow(spans, link[0], link[1]) {
					return link[0] + " below " + link[1]
				}
			}
			return ""
		}
		defer func() {
			if t.Failed() {
				t.Logf("missing: %s; the trace:\n%s", missing(), collector.Tree(spans))
			}
		}()
		require.Eventually(t, func() bool { return missing() == "" }, time.Minute, 20*time.Millisecond)
		require.Len(t, c.Spans(""), len(c.Spans(knownTrace)), "a ratio of 0 traces nothing by itself")
		for _, span := range spans {
			if span.GetName() == "POST /v1/triggers/{token}" {
				require.Equal(t, knownSpan, span.Parent())
			}
			if span.GetName() == "turn" {
				require.Equal(t, "keeper", span.Attribute("quartet.agent_id"))
				require.Equal(t, "finished", span.Attribute("quartet.end_reason"))
				require.Contains(t, traceparent, span.ID(), "the runner was given the turn's own span")
			}
			text := span.String()
			require.NotContains(t, text, "wait for the world", "no content goes into traces")
			require.NotContains(t, text, url[strings.LastIndex(url, "/")+1:], "no secrets either")
		}

		s.eventsCarry(t, ctx, "trigger_delivered", "task_completed", "turn_completed")
		require.NotEmpty(t, logs.FilterField(zap.String("trace_id", knownTrace)).All(),
			"log entries name the trace that they are part of")
	})
}

func hasBelow(spans []collector.Span, name, above string) bool {
	for _, s := range spans {
		if s.GetName() == name && collector.Above(spans, s, above) {
			return true
		}
	}
	return false
}

// eventsCarry wants the newest event of each type to be part of the known trace.
func (s *system) eventsCarry(t *testing.T, ctx context.Context, types ...string) {
	stream := must.Value(s.events.WatchEvents(ctx, &eventv1.WatchEventsRequest{FromStart: true, StopAtEnd: true}))(t)
	newest := map[string]string{}
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		newest[m.GetEvent().GetEventType()] = m.GetEvent().GetTraceparent()
	}
	for _, typ := range types {
		require.Contains(t, newest[typ], knownTrace, typ)
	}
}

// An agent that goes on by itself does not have one trace without end: a turn that
// follows from a turn of the same agent begins a trace of its own, linked to the
// other. A turn that is offered again stays where it was.
func TestSight_ATraceHoldsOneTurnOfAnAgent(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := collector.Start(t)
	s := oneProcessWith(t, func(t *testing.T, cfg app.Config) *app.App {
		cfg.OTLPEndpoint, cfg.TraceRatio = c.GRPC, 1
		return startApp(t, cfg)
	})
	s.spawn(t, ctx, "keeper")
	s.say(t, ctx, "keeper", "run it")
	tn := s.acquire(t, ctx, "keeper")
	first := tn.got.GetTurn().GetTraceparent()
	require.NotEmpty(t, first, "whoever asks from outside begins a trace")
	must.Value(s.agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{
		AgentId: "keeper", TurnId: tn.got.GetTurn().GetTurnId(), RunId: tn.got.GetTurn().GetRunId(),
		Outcome: agentv1.TurnOutcome_TURN_OUTCOME_RETRYABLE,
	}))(t)
	tn = s.acquire(t, ctx, "keeper")
	require.True(t, tracing.SameTrace(first, tn.got.GetTurn().GetTraceparent()), "the same message again")
	r := tn.round(t, ctx, "", tool(t, "ExecCommand", map[string]any{"cmd": "true", "yield_time": "0s"}))
	tn.round(t, ctx, "",
		tool(t, "WaitFor", map[string]any{"wake": "task_result", "resource": at(r.GetToolResults()[0], "handle",
			"task_id"), "reason": "the command"}))

	tn = s.acquire(t, ctx, "keeper")
	second := tn.got.GetTurn().GetTraceparent()
	require.True(t, tracing.SameTrace(first, tn.got.GetMessage().GetTraceparent()),
		"the result is part of what had the command run")
	require.NotEmpty(t, second)
	require.False(t, tracing.SameTrace(first, second))
	tn.round(t, ctx, "Done.")
	must.Value(s.agents.FinishTurn(ctx, &agentv1.FinishTurnRequest{AgentId: "keeper", TurnId: tn.got.GetTurn().
		GetTurnId(), RunId: tn.got.GetTurn().GetRunId()}))(t)
	require.Eventually(t, func() bool {
		for _, span := range c.Spans(second[3:35]) {
			if span.GetName() == "turn" {
				return span.Parent() == "" && len(span.GetLinks()) == 1 &&
					strings.Contains(first, hex.EncodeToString(span.GetLinks()[0].GetTraceId()))
			}
		}
		return false
	}, time.Minute, 20*time.Millisecond)
	failed := 0
	for _, span := range c.Spans(first[3:35]) {
		if span.GetName() == "turn" && span.GetStatus().GetMessage() == "retryable" {
			failed++
		}
	}
	require.Equal(t, 1, failed, "how a turn ended is told")
}
