package tracing

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/zap"

	"quartet/pkg/meter"
)

// The protocols of the exporter.
const (
	GRPC = "grpc"
	HTTP = "http/protobuf"
)

// Config holds the settings of a Tracer. Empty fields are taken from OpenTelemetry's
// environment variables (OTEL_…), and otherwise have a default.
type Config struct {
	// Endpoint is the collector's URL, such as http://127.0.0.1:4317; https means TLS.
	// Empty: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT; without
	// these nothing is traced.
	Endpoint string
	// Protocol is GRPC or HTTP. Empty: OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or
	// OTEL_EXPORTER_OTLP_PROTOCOL, otherwise GRPC.
	Protocol string
	// Ratio is the share of the traces that begin here and are sampled, 0 to 1. Traces that
	// began elsewhere are sampled if their parent is.
	Ratio float64
	// Service is the service name; empty: OTEL_SERVICE_NAME, otherwise quartet. Instance
	// distinguishes processes of one service; empty: the host's name.
	Service, Instance string
	// Version is the version of the build.
	Version string
	// Logger gets, at most once a minute, an entry about spans that could not be exported.
	Logger *zap.Logger
	// Metrics gets the counters of exported spans. Optional.
	Metrics prometheus.Registerer
}

// protocol returns the protocol of the exporter.
func (c Config) protocol() (string, error) {
	p := cmp.Or(c.Protocol, os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		GRPC)
	if p != GRPC && p != HTTP {
		return "", fmt.Errorf("otlp-protocol is %q; it must be %s or %s", p, GRPC, HTTP)
	}
	return p, nil
}

// endpoint returns the collector's URL, or "" if tracing is off.
func (c Config) endpoint() string {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return ""
	}
	return cmp.Or(c.Endpoint, os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
}

// Check returns an error if the endpoint, the ratio or the protocol is invalid. It checks a protocol from
// the environment only if tracing is on, and does not check an endpoint from the environment.
func (c Config) Check() error {
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("otlp-endpoint is %q; it must be a URL such as http://127.0.0.1:4317", c.Endpoint)
		}
	}
	if !(c.Ratio >= 0 && c.Ratio <= 1) {
		return fmt.Errorf("trace-ratio is %g; it must be 0 to 1", c.Ratio)
	}
	if c.Protocol == "" && c.endpoint() == "" {
		return nil
	}
	_, err := c.protocol()
	return err
}

// New returns a Tracer, or nil if no collector is configured. It does not wait for the
// collector, and connects when there is something to send.
func New(ctx context.Context, c Config) (*Tracer, error) {
	if err := c.Check(); err != nil || c.endpoint() == "" {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	about, err := c.resource(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	sampler := sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.Ratio))
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(newCountingExporter(exporter, c)),
		sdktrace.WithSampler(sampler),
		sdktrace.WithResource(about), sdktrace.WithIDGenerator(ids{}))
	return &Tracer{provider: p, sampler: sampler, tracer: p.Tracer("quartet")}, nil
}

// client returns the client of the exporter. It reads further settings, such as headers and
// certificates, from OTEL_EXPORTER_OTLP_….
func (c Config) client() (otlptrace.Client, error) {
	p, err := c.protocol()
	if err != nil {
		return nil, err
	}
	if p == HTTP {
		var opts []otlptracehttp.Option
		if c.Endpoint != "" {
			at := strings.TrimRight(c.Endpoint, "/")
			if u, err := url.Parse(at); err == nil && u.Path == "" {
				at += "/v1/traces"
			}
			opts = append(opts, otlptracehttp.WithEndpointURL(at))
		}
		return otlptracehttp.NewClient(opts...), nil
	}
	var opts []otlptracegrpc.Option
	if c.Endpoint != "" {
		opts = append(opts, otlptracegrpc.WithEndpointURL(c.Endpoint))
	}
	return otlptracegrpc.NewClient(opts...), nil
}

func (c Config) resource(ctx context.Context) (*resource.Resource, error) {
	instance := c.Instance
	if instance == "" {
		instance, _ = os.Hostname() // without one the spans have an empty name
	}
	own := []attribute.KeyValue{
		attribute.String("service.name", "quartet"),
		attribute.String("service.version", c.Version), attribute.String("service.instance.id", instance),
	}
	var said []attribute.KeyValue // of the configuration, which takes precedence over the environment
	if c.Service != "" {
		said = append(said, attribute.String("service.name", c.Service))
	}
	if c.Instance != "" {
		said = append(said, attribute.String("service.instance.id", c.Instance))
	}
	return resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(own...), resource.WithFromEnv(),
		resource.WithAttributes(said...))
}

// countingExporter is an exporter that counts exported and lost spans, and logs failures. It returns no errors, which
// the SDK would pass to a handler of the whole process that writes to standard error.
type countingExporter struct {
	sdktrace.SpanExporter
	log            *zap.Logger
	good, failures prometheus.Counter

	mu   sync.Mutex
	last time.Time // when a failure was logged last
}

// logEvery is how often failures are logged while the collector cannot be reached.
const logEvery = time.Minute

func newCountingExporter(to sdktrace.SpanExporter, c Config) *countingExporter {
	return &countingExporter{
		SpanExporter: to, log: c.Logger,
		good: meter.Counter(c.Metrics, "quartet_trace_spans_exported_total", "Spans exported to a collector.").
			WithLabelValues(),
		failures: meter.Counter(c.Metrics, "quartet_trace_spans_failed_total",
			"Spans that could not be exported and are lost.").WithLabelValues(),
	}
}

// ExportSpans implements sdktrace.SpanExporter. It always returns nil: spans that cannot be exported are lost.
func (e *countingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		e.good.Add(float64(len(spans)))
		return nil
	}
	e.failures.Add(float64(len(spans)))
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); now.Sub(e.last) > logEvery {
		e.last = now
		e.log.Warn("traces cannot be sent; they are dropped until they can", zap.Int("spans", len(spans)),
			zap.Error(err))
	}
	return nil
}
