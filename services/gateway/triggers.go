package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/netip"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/pbjson"
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

// deliveries serves the deliveries of outside systems (SPEC P3). The token in the path is the only
// credential; it appears in no log and no response, and an Authorization header is ignored.
type deliveries struct {
	gateway *Service
	waiting waitingv1.WaitingServiceClient
	bounds  *deliveryBounds
}

// deliveries returns the handler for deliveries of outside systems.
func (g *Service) deliveries() (http.Handler, error) {
	plane, err := g.conn("waiting")
	if err != nil {
		return nil, err
	}
	return &deliveries{
		gateway: g, waiting: waitingv1.NewWaitingServiceClient(plane),
		bounds: newDeliveryBounds(g.cfg, g.registerer()),
	}, nil
}

// ServeHTTP implements http.Handler. It responds with 200 and the DeliverTriggerResponse as JSON. Whatever can be
// refused without the body is refused before the body is read (SPEC G9).
func (d *deliveries) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The namespace and agent follow from the token; those of this actor are not used.
	ctx := rpc.WithActor(r.Context(), rpc.Actor{
		Namespace: rpc.DefaultNamespace, Principal: "trigger",
		Role: rpc.RoleIntegration,
	})
	source := connlimit.SourceOf(r.Context())
	size := r.ContentLength
	if size < 0 || size > maxDelivery { // a larger one is refused by readBody
		size = maxDelivery
	}
	found, err := d.waiting.CheckDelivery(ctx, &waitingv1.CheckDeliveryRequest{
		Token:     r.PathValue("token"),
		BodyBytes: size,
	})
	switch {
	case errors.Is(err, fault.RateLimited), errors.Is(err, fault.QuotaExceeded): // the token is valid
		refuse(w, r, err)
		return
	case errors.Is(err, fault.NotFound):
		d.gateway.refuseCaller(w, r, d.bounds.wrong(source, err))
		return
	case err != nil:
		d.gateway.refuseCaller(w, r, err)
		return
	}
	done, err := d.bounds.admit(source, found.GetNamespace(), found.GetTriggerId(), size)
	if err != nil {
		refuse(w, r, err)
		return
	}
	defer done()
	_, turn, err := d.gateway.enter(ctx, rpc.Actor{Namespace: found.GetNamespace(), Role: rpc.RoleIntegration})
	if err != nil {
		refuse(w, r, err)
		return
	}
	defer turn.Leave()
	release, ok := grant(r, 2*maxDelivery+maxHeader) // as much as readBody reads, and chunks' headers
	if !ok {
		return // the sender has left
	}
	defer release()
	body, err := readBody(w, r, maxDelivery)
	if err != nil {
		refuse(w, r, err)
		return
	}
	req := &waitingv1.DeliverTriggerRequest{
		Token: r.PathValue("token"), ContentType: contentType(r.Header.Get("Content-Type")), Body: body,
		HubSignature_256: r.Header.Get("X-Hub-Signature-256"),
		WebhookId:        r.Header.Get("Webhook-Id"), WebhookTimestamp: r.Header.Get("Webhook-Timestamp"),
		WebhookSignature: r.Header.Get("Webhook-Signature"),
	}
	if req.RequestId, err = deliveryKey(r.Header); err != nil {
		refuse(w, r, err)
		return
	}
	d.deliver(ctx, w, r, source, req)
}

// deliveryKey returns the request id of a delivery, from the first header of deliveryKeys that it has; "" for none.
// An Idempotency-Key that cannot be a request id is an error. The headers of known webhooks may have values of any
// form and length: a value that cannot be a request id is replaced by its hash.
func deliveryKey(h http.Header) (string, error) {
	for i, name := range deliveryKeys {
		value := strings.TrimSpace(h.Get(name))
		if value == "" {
			continue
		}
		if i == 0 {
			if key := unquoted(value); key != "" {
				return key, fault.RequestID(key)
			}
			continue
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
func (d *deliveries) deliver(ctx context.Context, w http.ResponseWriter, r *http.Request, source netip.Addr,
	req *waitingv1.DeliverTriggerRequest,
) {
	var header metadata.MD
	resp, err := d.waiting.DeliverTrigger(ctx, req, grpc.Header(&header))
	if errors.Is(err, fault.SignatureInvalid) {
		err = d.bounds.wrong(source, err)
	}
	if err != nil {
		d.gateway.refuseCaller(w, r, err)
		return
	}
	proven(r)
	if rpc.WasReplayed(header) {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	out, err := pbjson.MarshalProtoJSON(resp)
	if err != nil {
		refuse(w, r, fault.Internal(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(out, '\n'))
}
