package tracing_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"quartet/pkg/must"
	"quartet/pkg/tracing"
	"quartet/tests/collector"
)

const known = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestTraceparentsAreReadAsW3CHasIt(t *testing.T) {
	sc, ok := tracing.Parse(known)
	require.True(t, ok)
	require.True(t, sc.IsSampled())
	require.Equal(t, known, tracing.Format(sc))
	sc, ok = tracing.Parse(strings.TrimSuffix(known, "01") + "00")
	require.True(t, ok)
	require.Empty(t, tracing.Format(sc), "what is not sampled is not carried on")
	_, ok = tracing.Parse("cc" + known[2:] + "-what-will-come")
	require.True(t, ok, "a later version may say more")
	for name, bad := range map[string]string{
		"empty": "", "short": known[:54], "longer than its version": known + "-x", "upper case": strings.ToUpper(known),
		"no version ff": "ff" + known[2:], "no hex": strings.Replace(known, "4bf", "xyz", 1),
		"no trace":  "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
		"no span":   "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
		"no dashes": strings.ReplaceAll(known, "-", "_"), "a later version that runs on": "cc" + known[2:] + "x",
	} {
		_, ok := tracing.Parse(bad)
		require.False(t, ok, name)
		require.Equal(t, t.Context(), tracing.Continue(t.Context(), bad), name)
	}
}

func FuzzTraceparent(f *testing.F) {
	f.Add(known)
	f.Fuzz(func(t *testing.T, s string) {
		if sc, ok := tracing.Parse(s); ok && sc.IsSampled() && len(s) == len(known) && s[:2] == "00" {
			require.Equal(t, s[:53], tracing.Format(sc)[:53])
		}
	})
}

// Off is a nil tracer: nothing begins, nothing is carried, nothing fails.
func TestOffDoesNothing(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		t.Setenv(name, "")
	}
	off := must.Value(tracing.New(t.Context(), tracing.Config{Ratio: 1}))(t)
	require.Nil(t, off)
	require.False(t, off.On())
	ctx, span := off.Begin(t.Context(), "x")
	span.End()
	require.Equal(t, t.Context(), ctx)
	require.Empty(t, tracing.Carried(ctx))
	require.Empty(t, tracing.Fields(ctx))
	require.Empty(t, off.Reserve(known, false))
	off.Finish(known, "", "x", time.Now(), time.Now(), "")
	require.NoError(t, off.Stop(t.Context()))

	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_SDK_DISABLED", "true")
	off = must.Value(tracing.New(t.Context(), tracing.Config{Ratio: 1}))(t)
	require.Nil(t, off, "OpenTelemetry's own switch")
}

func TestSettingsAreChecked(t *testing.T) {
	for bad, c := range map[string]tracing.Config{
		"otlp-endpoint": {Endpoint: "127.0.0.1:4317"}, "http://127.0.0.1:4317": {Endpoint: "ftp://there"},
		"trace-ratio is 1.1": {Ratio: 1.1}, "trace-ratio is -0.1": {Ratio: -0.1},
		"otlp-protocol": {Protocol: "http/json"},
	} {
		require.ErrorContains(t, c.Check(), bad)
	}
	for _, ratio := range []float64{0, 0.5, 1} {
		require.NoError(t, tracing.Config{Endpoint: "https://there:4317", Ratio: ratio, Protocol: tracing.HTTP}.Check())
	}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
	require.NoError(t, tracing.Config{}.Check(), "a variable of other programs, without an endpoint")
	require.ErrorContains(t, tracing.Config{Endpoint: "https://there:4317"}.Check(), "http/json")
}

// start returns a tracer that sends to a collector, and stop that waits for what it sent.
func start(t *testing.T, c tracing.Config) (tracer *tracing.Tracer, stop func()) {
	c.Version = "test"
	tracer = must.Value(tracing.New(t.Context(), c))(t)
	return tracer, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, tracer.Stop(ctx))
	}
}

func TestSpansArriveOverBothProtocols(t *testing.T) {
	for _, protocol := range []string{tracing.GRPC, tracing.HTTP} {
		t.Run(protocol, func(t *testing.T) {
			c := collector.Start(t)
			at := map[string]string{tracing.GRPC: c.GRPC, tracing.HTTP: c.HTTP}[protocol]
			tracer, stop := start(t, tracing.Config{Endpoint: at, Protocol: protocol, Ratio: 1, Service: "here"})
			ctx, root := tracer.Begin(t.Context(), "root")
			_, child := tracer.Start(ctx, "child")
			carried := tracing.Carried(ctx)
			_, there := tracer.Under(t.Context(), carried, "there")
			_, none := tracer.Start(t.Context(), "nobody asked")
			require.False(t, none.SpanContext().IsValid(), "a trace begins where it is begun, nowhere else")
			there.End()
			child.End()
			root.End()
			stop()
			spans := c.Spans("")
			require.Len(t, spans, 3)
			require.Equal(t, "here", spans[0].Service)
			require.True(t, hasParent(spans, "child", "root"))
			require.True(t, hasParent(spans, "there", "root"))
			require.Len(t, tracing.Fields(ctx), 2)
		})
	}
}

func hasParent(spans []collector.Span, name, parent string) bool {
	for _, s := range spans {
		if s.GetName() == name && collector.Above(spans, s, parent) {
			return true
		}
	}
	return false
}

// OpenTelemetry's own variables say where, and who this is.
func TestTheStandardVariablesAreHeard(t *testing.T) {
	c := collector.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.GRPC)
	t.Setenv("OTEL_SERVICE_NAME", "by-variable")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	tracer, stop := start(t, tracing.Config{Ratio: 1})
	_, span := tracer.Begin(t.Context(), "x")
	span.End()
	stop()
	require.Len(t, c.Spans(""), 1)
	require.Equal(t, "by-variable", c.Spans("")[0].Service)
}

// The ratio is for traces that begin here; what a caller sampled is sampled.
func TestRatioIsForWhatBeginsHere(t *testing.T) {
	c := collector.Start(t)
	tracer, stop := start(t, tracing.Config{Endpoint: c.GRPC})
	ctx, span := tracer.Begin(t.Context(), "mine")
	require.Empty(t, tracing.Carried(ctx))
	span.End()
	_, span = tracer.Begin(tracing.Continue(t.Context(), known), "theirs")
	span.End()
	require.NotEmpty(t, tracer.Reserve(known, false))
	require.Empty(t, tracer.Reserve(known, true), "a trace of its own begins here")
	stop()
	require.Len(t, c.Spans(""), 1)
	require.Equal(t, "theirs", c.Spans("")[0].GetName())
}

// A span that was reserved is told of when it is over: with the id that was carried
// on meanwhile, below its parent, or as a root that links to it.
func TestReservedSpansAreRecordedAtTheEnd(t *testing.T) {
	c := collector.Start(t)
	tracer, stop := start(t, tracing.Config{Endpoint: c.GRPC, Ratio: 1})
	own, fresh := tracer.Reserve(known, false), tracer.Reserve(known, true)
	require.True(t, tracing.SameTrace(own, known))
	require.False(t, tracing.SameTrace(fresh, known))
	from := time.Now().Add(-time.Minute)
	tracer.Finish(own, known, "turn", from, from.Add(time.Second), "aborted")
	tracer.Finish(fresh, known, "turn", from, from.Add(time.Second), "")
	stop()
	spans := c.Spans("")
	require.Len(t, spans, 2)
	for _, s := range spans {
		require.EqualValues(t, time.Second, s.GetEndTimeUnixNano()-s.GetStartTimeUnixNano())
		if strings.Contains(own, s.Trace()) {
			require.Contains(t, own, s.ID())
			require.Equal(t, "00f067aa0ba902b7", s.Parent())
			require.Equal(t, "aborted", s.GetStatus().GetMessage())
			continue
		}
		require.Contains(t, fresh, s.ID())
		require.Empty(t, s.Parent())
		require.Len(t, s.GetLinks(), 1)
	}
}

// A collector that is away costs one entry of the log, and nobody waits for it.
func TestACollectorThatIsAwayIsNoError(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	core, logs := observer.New(zap.WarnLevel)
	reg := prometheus.NewRegistry()
	tracer := must.Value(tracing.New(t.Context(), tracing.Config{
		Endpoint: "http://127.0.0.1:1", Ratio: 1,
		Logger: zap.New(core), Metrics: reg,
	}))(t)
	for range 5 {
		_, span := tracer.Begin(t.Context(), "x", trace.WithSpanKind(trace.SpanKindServer))
		span.End()
	}
	lost := func() float64 {
		families := must.Value(reg.Gather())(t)
		for _, f := range families {
			if f.GetName() == "quartet_trace_spans_failed_total" {
				return f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return 0
	}
	require.Eventually(t, func() bool { return lost() == 5 }, time.Minute, 10*time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, tracer.Stop(ctx))
	require.Equal(t, 1, logs.Len())
}

// BenchmarkSpan is what a sampled span costs who makes it, and what the traceparent
// of an event does.
func BenchmarkSpan(b *testing.B) {
	tracer := must.Value(tracing.New(b.Context(), tracing.Config{Endpoint: "http://127.0.0.1:1", Ratio: 1}))(b)
	ctx, _ := tracer.Begin(b.Context(), "root")
	b.Run("span", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, span := tracer.Start(ctx, "x", trace.WithSpanKind(trace.SpanKindServer))
			span.End()
		}
	})
	b.Run("carry", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tracing.Continue(ctx, tracing.Carried(ctx))
		}
	})
	var off *tracing.Tracer
	b.Run("off", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, span := off.Start(ctx, "x")
			span.End()
		}
	})
}
