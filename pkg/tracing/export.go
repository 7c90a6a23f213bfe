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

// The protocols by which a collector is reached.
const (
	GRPC = "grpc"
	HTTP = "http/protobuf"
)

// Config says what is traced, as what, and where to. What it leaves empty comes
// from OpenTelemetry's own variables (OTEL_…), else from a default.
type Config struct {
	// Endpoint is the collector's URL, as http://127.0.0.1:4317; https secures it.
	// Empty: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT;
	// without those nothing is traced.
	Endpoint string
	// Protocol is GRPC or HTTP. Empty: OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or
	// OTEL_EXPORTER_OTLP_PROTOCOL, else GRPC.
	Protocol string
	// Ratio of the traces that begin here, 0 to 1. Those that began elsewhere are
	// sampled as their beginning says.
	Ratio float64
	// Service names the process among others; empty: OTEL_SERVICE_NAME, else
	// quartet. Instance tells processes of one service apart; empty: the host's name.
	Service, Instance string
	// Version is the build's.
	Version string
	// Logger hears, once a minute at most, that spans could not be sent.
	Logger *zap.Logger
	// Metrics counts what was sent; nil counts nothing.
	Metrics prometheus.Registerer
}

// protocol of the exporter, or what is wrong with it.
func (c Config) protocol() (string, error) {
	p := cmp.Or(c.Protocol, os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), GRPC)
	if p != GRPC && p != HTTP {
		return "", fmt.Errorf("otlp-protocol is %q; it must be %s or %s", p, GRPC, HTTP)
	}
	return p, nil
}

// endpoint is the collector's address; "" if there is none, which means off.
func (c Config) endpoint() string {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return ""
	}
	return cmp.Or(c.Endpoint, os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
}

// Check says what is wrong with the settings.
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
	_, err := c.protocol()
	return err
}

// New makes a tracer, or nil where no collector is named. It opens no connection
// before there is something to send, and never waits for the collector.
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
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(newSent(exporter, c)), sdktrace.WithSampler(sampler),
		sdktrace.WithResource(about), sdktrace.WithIDGenerator(ids{}))
	return &Tracer{provider: p, sampler: sampler, tracer: p.Tracer("quartet")}, nil
}

// client reads what Config does not say, such as headers and certificates, from
// OTEL_EXPORTER_OTLP_… by itself.
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
		instance, _ = os.Hostname() // a name nobody needs
	}
	own := []attribute.KeyValue{attribute.String("service.name", "quartet"), attribute.String("service.version", c.Version), attribute.String("service.instance.id", instance)}
	var said []attribute.KeyValue // over what the environment says
	if c.Service != "" {
		said = append(said, attribute.String("service.name", c.Service))
	}
	if c.Instance != "" {
		said = append(said, attribute.String("service.instance.id", c.Instance))
	}
	return resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(own...), resource.WithFromEnv(), resource.WithAttributes(said...))
}

// sent is an exporter whose failures are counted and logged here: the SDK would
// hand them to a handler of the whole process, and that writes to standard error.
type sent struct {
	sdktrace.SpanExporter
	log            *zap.Logger
	good, failures prometheus.Counter

	mu   sync.Mutex
	last time.Time // of a log entry
}

// complainEvery is how often failures are logged while a collector is away.
const complainEvery = time.Minute

func newSent(to sdktrace.SpanExporter, c Config) *sent {
	return &sent{
		SpanExporter: to, log: c.Logger,
		good:     meter.Counter(c.Metrics, "quartet_trace_spans_exported_total", "Spans that a collector took.").WithLabelValues(),
		failures: meter.Counter(c.Metrics, "quartet_trace_spans_failed_total", "Spans that could not be sent to a collector and are lost.").WithLabelValues(),
	}
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *sent) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		e.good.Add(float64(len(spans)))
		return nil
	}
	e.failures.Add(float64(len(spans)))
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); now.Sub(e.last) > complainEvery {
		e.last = now
		e.log.Warn("traces cannot be sent; they are dropped until they can", zap.Int("spans", len(spans)), zap.Error(err))
	}
	return nil
}
