package rpc

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// recallHeader marks a call that only reads the response of an earlier request.
const recallHeader = "quartet-recall"

// Recall makes mutations under ctx only return the response of an earlier request with the
// same request_id, from the request memory (SPEC X2), and NOT_FOUND if none is remembered;
// they execute nothing. This holds for mutations whose handlers use the caller's request id
// in the journal. Others, and calls without a request id, are executed as usual.
func Recall(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, recallHeader, "true")
}

// Recalling reports whether a call that is being served was made under Recall.
func Recalling(ctx context.Context) bool {
	v := metadata.ValueFromIncomingContext(ctx, recallHeader)
	return len(v) > 0 && v[0] == "true"
}

// AskRecall makes the handler of a call that is being served treat it as made under Recall.
// It is for interceptors.
func AskRecall(ctx context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(ctx) // a copy
	if !ok {
		md = metadata.MD{}
	}
	md.Set(recallHeader, "true")
	return metadata.NewIncomingContext(ctx, md)
}

// AsksRecall reports whether ctx is one of Recall, before the call is made. It is for tests
// that replace the server.
func AsksRecall(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	v := md.Get(recallHeader)
	return len(v) > 0 && v[0] == "true"
}
