package gateway

import (
	"fmt"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/rpc"
)

const (
	triggerPath = "/v1/triggers/"
	// maxDelivery is the largest body of a delivery (SPEC P3).
	maxDelivery = 256 << 10
)

// deliveries takes what outside systems send (SPEC P3). The token in the path
// is the credential: it never reaches a log or an answer, and a header that
// looks like another credential is not looked at.
func (g *Service) deliveries() (http.Handler, error) {
	plane, err := g.deps.Conn("waiting")
	if err != nil {
		return nil, fmt.Errorf("gateway: waiting: %w", err)
	}
	waiting := waitingv1.NewWaitingServiceClient(plane)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := readBody(w, r, maxDelivery)
		if err != nil {
			refuse(w, r, err)
			return
		}
		req := &waitingv1.DeliverTriggerRequest{
			Token: r.PathValue("token"), RequestId: unquoted(r.Header.Get("Idempotency-Key")),
			ContentType: r.Header.Get("Content-Type"), Body: body,
		}
		if err := fault.RequestID(req.GetRequestId()); err != nil {
			refuse(w, r, err)
			return
		}
		g.deliver(w, r, waiting, req)
	}), nil
}

func (g *Service) deliver(w http.ResponseWriter, r *http.Request, waiting waitingv1.WaitingServiceClient, req *waitingv1.DeliverTriggerRequest) {
	// Whose trigger it is, and so the tenant, follows from the token.
	ctx := rpc.WithActor(r.Context(), rpc.Actor{Namespace: rpc.DefaultNamespace, Principal: "trigger", Role: rpc.RoleIntegration})
	var header metadata.MD
	resp, err := waiting.DeliverTrigger(ctx, req, grpc.Header(&header))
	if err != nil {
		refuse(w, r, err)
		return
	}
	if rpc.WasReplayed(header) {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	out, err := protoJSON(resp)
	if err != nil {
		refuse(w, r, fault.Internal(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(out, '\n'))
}
