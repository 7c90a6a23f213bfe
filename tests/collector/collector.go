// Package collector is an OpenTelemetry collector for tests: it speaks OTLP over
// gRPC and over HTTP, and keeps what it is sent.
package collector

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Span is a span as it was sent.
type Span struct {
	*tracepb.Span
	Service string // of its process
}

// ID returns the span's id in hex.
func (s Span) ID() string { return hex.EncodeToString(s.GetSpanId()) }

// Parent returns the id of its parent in hex, "" for a root.
func (s Span) Parent() string { return hex.EncodeToString(s.GetParentSpanId()) }

// Trace is its trace in hex.
func (s Span) Trace() string { return hex.EncodeToString(s.GetTraceId()) }

// Attribute is one of the span's as text, "" if it has none of that name.
func (s Span) Attribute(key string) string { return attribute(s.GetAttributes(), key) }

func attribute(all []*commonpb.KeyValue, key string) string {
	for _, a := range all {
		if a.GetKey() == key {
			switch v := a.GetValue().GetValue().(type) {
			case *commonpb.AnyValue_StringValue:
				return v.StringValue
			case *commonpb.AnyValue_IntValue:
				return fmt.Sprint(v.IntValue)
			case *commonpb.AnyValue_BoolValue:
				return fmt.Sprint(v.BoolValue)
			}
		}
	}
	return ""
}

// Collector keeps spans.
type Collector struct {
	collectorpb.UnimplementedTraceServiceServer

	// GRPC and HTTP are its addresses as URLs.
	GRPC, HTTP string

	mu    sync.Mutex
	spans []Span
}

// Start serves a collector until the test ends.
func Start(t testing.TB) *Collector {
	c := &Collector{}
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(srv, c)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis) // ends with the server
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-served
	})
	web := httptest.NewServer(http.HandlerFunc(c.receive))
	t.Cleanup(web.Close)
	c.GRPC, c.HTTP = "http://"+lis.Addr().String(), web.URL
	return c
}

// Export implements OTLP over gRPC.
func (c *Collector) Export(_ context.Context, req *collectorpb.ExportTraceServiceRequest) (
	*collectorpb.ExportTraceServiceResponse, error,
) {
	c.keep(req)
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// receive implements OTLP over HTTP.
func (c *Collector) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	req := &collectorpb.ExportTraceServiceRequest{}
	if err == nil {
		err = proto.Unmarshal(body, req)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, "no OTLP", http.StatusBadRequest)
		return
	}
	c.keep(req)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (c *Collector) keep(req *collectorpb.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		service := attribute(r.GetResource().GetAttributes(), "service.name")
		for _, s := range r.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				c.spans = append(c.spans, Span{span, service})
			}
		}
	}
}

// Spans returns those of a trace, or all for "".
func (c *Collector) Spans(trace string) []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Span
	for _, s := range c.spans {
		if trace == "" || s.Trace() == trace {
			out = append(out, s)
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].GetStartTimeUnixNano() < out[j].GetStartTimeUnixNano() })
	return out
}

// Tree draws a trace as indented lines, each span below its parent. A span whose parent is not
// among them is drawn like a root.
func Tree(spans []Span) string {
	var b strings.Builder
	known := map[string]bool{}
	for _, s := range spans {
		known[s.ID()] = true
	}
	var draw func(parent string, depth int)
	draw = func(parent string, depth int) {
		for _, s := range spans {
			if s.Parent() != parent && (depth > 0 || known[s.Parent()]) {
				continue
			}
			fmt.Fprintf(&b, "%s%s (%s)\n", strings.Repeat("  ", depth), s.GetName(), s.Service)
			draw(s.ID(), depth+1)
		}
	}
	draw("", 0)
	return b.String()
}

// Above reports whether a span of this name is above another in its trace.
func Above(spans []Span, of Span, name string) bool {
	for up := of.Parent(); up != ""; {
		i := slices.IndexFunc(spans, func(s Span) bool { return s.ID() == up })
		if i < 0 {
			return false
		}
		if spans[i].GetName() == name {
			return true
		}
		up = spans[i].Parent()
	}
	return false
}
