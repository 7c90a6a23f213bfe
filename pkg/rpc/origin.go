package rpc

import (
	"context"

	"google.golang.org/grpc/metadata"

	"quartet/pkg/connlimit"
)

// Two headers of calls between services carry what the first service of a call knows about it. They
// are accepted only in calls that were made with the credential of a service.
const (
	sourceHeader   = "quartet-source"
	recordedHeader = "quartet-recorded"
)

type recordedKey struct{}

// WithRecorded returns a context which marks a call as recorded in the audit log, so that the services that it
// is passed on to do not record it again.
func WithRecorded(ctx context.Context) context.Context {
	return context.WithValue(ctx, recordedKey{}, true)
}

// WasRecorded reports whether the call is marked as recorded, by WithRecorded in this process or by the service
// that sent it.
func WasRecorded(ctx context.Context) bool {
	if on, _ := ctx.Value(recordedKey{}).(bool); on {
		return true
	}
	return Via(ctx) != "" && len(metadata.ValueFromIncomingContext(ctx, recordedHeader)) > 0
}

// SourceFrom returns the address from which a call entered the installation, in the form of
// connlimit.SourceOf. It is "" for a call that a service makes on its own behalf.
func SourceFrom(ctx context.Context) string {
	if Via(ctx) != "" {
		if values := metadata.ValueFromIncomingContext(ctx, sourceHeader); len(values) > 0 {
			return values[0]
		}
		return ""
	}
	if source := connlimit.SourceOf(ctx); source.IsValid() {
		return source.String()
	}
	return ""
}

// origin returns sourceHeader and recordedHeader for a call to another service, as pairs of key and value.
func origin(ctx context.Context) []string {
	var pairs []string
	if source := SourceFrom(ctx); source != "" {
		pairs = append(pairs, sourceHeader, source)
	}
	if WasRecorded(ctx) {
		pairs = append(pairs, recordedHeader, "1")
	}
	return pairs
}
