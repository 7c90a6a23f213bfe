package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/rpc"
)

const (
	// triggerPath is before the token in the path of a delivery.
	triggerPath = "/v1/triggers/"
	// maxDelivery is the largest body of a delivery (SPEC P3).
	maxDelivery = 256 << 10
	// maxContentType is the longest Content-Type that is forwarded, in bytes.
	maxContentType = 255
)

// deliveryKeys are the headers by which outside systems name a delivery, so that
// one they repeat counts once (SPEC P3, X2). The first one that is present counts. Any sender
// may set Idempotency-Key; the others are those of known webhooks.
var deliveryKeys = []string{
	"Idempotency-Key",                // GitLab too
	"Webhook-Id",                     // standardwebhooks.com
	"Svix-Id",                        // Svix and its customers
	"X-Github-Delivery",              // GitHub
	"X-Gitea-Delivery",               // Gitea
	"X-Forgejo-Delivery",             // Forgejo
	"X-Gogs-Delivery",                // Gogs
	"X-Request-Uuid",                 // Bitbucket
	"X-Atlassian-Webhook-Identifier", // Jira
	"X-Shopify-Webhook-Id",           // Shopify
	"I-Twilio-Idempotency-Token",     // Twilio
	"Linear-Delivery",                // Linear
	"Ce-Id",                          // CloudEvents over HTTP, with ce-source
}

// deliveries returns the handler for deliveries of outside systems (SPEC P3). The token in
// the path is the only credential; it appears in no log and no response, and an Authorization
// header is ignored.
func (g *Service) deliveries() (http.Handler, error) {
	plane, err := g.deps.Conn("waiting")
	if err != nil {
		return nil, fmt.Errorf("gateway: waiting: %w", err)
	}
	waiting := waitingv1.NewWaitingServiceClient(plane)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A body that is too large is refused before the token is looked up, so that the refusal
		// does not disclose whether the token exists.
		body, err := readBody(w, r, maxDelivery)
		if err != nil {
			refuse(w, r, err)
			return
		}
		req := &waitingv1.DeliverTriggerRequest{
			Token: r.PathValue("token"), ContentType: contentType(r.Header.Get("Content-Type")), Body: body,
			HubSignature_256: r.Header.Get("X-Hub-Signature-256"),
			WebhookId:        r.Header.Get("Webhook-Id"), WebhookTimestamp: r.Header.Get("Webhook-Timestamp"), WebhookSignature: r.Header.Get("Webhook-Signature"),
		}
		if req.RequestId, err = deliveryKey(r.Header); err != nil {
			refuse(w, r, err)
			return
		}
		g.deliver(w, r, waiting, req)
	}), nil
}

// deliveryKey returns the request id of a delivery, "" if its sender gives none. The value of
// a known webhook may have any form and length; one that cannot be a request id is hashed. Such
// an Idempotency-Key is refused.
func deliveryKey(h http.Header) (string, error) {
	for i, name := range deliveryKeys {
		value := strings.TrimSpace(h.Get(name))
		if value == "" {
			continue
		}
		if i == 0 {
			key := unquoted(value)
			return key, fault.RequestID(key)
		}
		if name == "Ce-Id" {
			value = h.Get("Ce-Source") + "#" + value // such an id is unique for its source only
		}
		key := strings.ToLower(name) + ":" + value
		if fault.RequestID(key) == nil {
			return key, nil
		}
		sum := sha256.Sum256([]byte(value))
		return strings.ToLower(name) + ":sha256:" + hex.EncodeToString(sum[:]), nil
	}
	return "", nil
}

// contentType returns the content type of a delivery if it can be stored, or else
// application/octet-stream.
func contentType(s string) string {
	if len(s) > maxContentType {
		return "application/octet-stream"
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return "application/octet-stream"
		}
	}
	return s
}

// deliver calls DeliverTrigger and responds with its result.
func (g *Service) deliver(w http.ResponseWriter, r *http.Request, waiting waitingv1.WaitingServiceClient, req *waitingv1.DeliverTriggerRequest) {
	// The namespace and agent follow from the token; those of this actor are not used.
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
