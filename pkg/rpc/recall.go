package rpc

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// recallHeader asks for the answer that a request id had, and for nothing else.
const recallHeader = "quartet-recall"

// Recall makes calls under ctx ask what came of an earlier request with the same
// request_id: they are answered from memory (SPEC X2), and NOT_FOUND where there
// was none. Nothing is run. It works for mutations whose handlers take them to the
// journal under the caller's request id; others ignore it.
func Recall(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, recallHeader, "true")
}

// Recalling reports whether a call that is being served asks so.
func Recalling(ctx context.Context) bool {
	v := metadata.ValueFromIncomingContext(ctx, recallHeader)
	return len(v) > 0 && v[0] == "true"
}

// AskRecall makes a call that is being served one that asks so, for who stands
// before its handler.
func AskRecall(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx) // a copy
	md.Set(recallHeader, "true")
	return metadata.NewIncomingContext(ctx, md)
}

// AsksRecall reports whether calls under ctx will ask so, for who stands in for
// the other side.
func AsksRecall(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	v := md.Get(recallHeader)
	return len(v) > 0 && v[0] == "true"
}
