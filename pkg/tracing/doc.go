// Package tracing follows what one request causes, through calls, journals and
// the time between them, and sends it to an OpenTelemetry collector.
//
// A trace begins at the edge, where somebody outside asks for something or a
// timer fires, and nowhere else: services that talk among themselves only ever
// continue one. Within a process it is in the context, between processes in the
// header traceparent of W3C Trace Context, and in a journal in the event's
// envelope. What is not traced, or not sampled, carries nothing.
//
// A nil *Tracer does nothing and costs a comparison; that is how tracing is off.
package tracing
