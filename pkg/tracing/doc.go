// Package tracing traces what a request causes, through calls and journals, and exports the
// spans to an OpenTelemetry collector.
//
// A trace begins only at the edge: with a request from outside or a timer. Calls between
// services continue a trace and never begin one. The trace is carried by the context within a
// process, by the header traceparent (W3C Trace Context) between processes, and by the envelope
// of events in a journal. A trace that is not sampled is not carried.
//
// A nil *Tracer is valid and does nothing: tracing is off.
package tracing
