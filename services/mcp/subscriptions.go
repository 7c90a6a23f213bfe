package mcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// MaxSubscriptions limits how many resources a session may be subscribed to.
const MaxSubscriptions = 100

// subscriptions are the resources whose changes a client is notified of (SPEC C5.5). One that
// the SDK has not registered yet is pending: a notification about it would be lost, so it is
// compared only after start.
type subscriptions struct {
	mu      *sync.Mutex
	active  map[string]string // the version that was seen last, by URI
	pending map[string]string // likewise; no URI is in both
	changed chan struct{}     // capacity 1: something may have changed
}

// newSubscriptions returns an empty set.
func newSubscriptions() subscriptions {
	return subscriptions{
		mu: &sync.Mutex{}, active: map[string]string{}, pending: map[string]string{},
		changed: make(chan struct{}, 1),
	}
}

// start compares the pending subscriptions from now on.
func (s *subscriptions) start() {
	s.mu.Lock()
	for uri, version := range s.pending {
		s.active[uri] = version
		delete(s.pending, uri)
	}
	s.mu.Unlock()
	s.kick()
}

// kick has the subscribed resources compared soon. It does not block.
func (s *subscriptions) kick() {
	select {
	case s.changed <- struct{}{}:
	default: // they will be
	}
}

// snapshot returns a copy of the active subscriptions: the version seen last, by URI.
func (s *subscriptions) snapshot() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]string, len(s.active))
	for uri, version := range s.active {
		out[uri] = version
	}
	return out
}

// update stores the version of an active subscription, and reports whether it differs from the
// one before. It does nothing and reports false if there is no such subscription.
func (s *subscriptions) update(uri, version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, active := s.active[uri]
	if active {
		s.active[uri] = version
	}
	return active && before != version
}

// subscribe adds a pending subscription to a plan or to the briefs, unless there is one. It
// refuses more than MaxSubscriptions, and resources that do not exist.
func (a *agentServer) subscribe(ctx context.Context, req *sdk.SubscribeRequest) error {
	if err := a.reached(ctx); err != nil {
		return a.protocolError(err)
	}
	uri := req.Params.URI
	version, err := a.versionOf(ctx, uri)
	if err != nil {
		return err
	}
	s := &a.subscriptions
	s.mu.Lock()
	defer s.mu.Unlock()
	_, active := s.active[uri]
	_, pending := s.pending[uri]
	if !active && !pending && len(s.active)+len(s.pending) >= MaxSubscriptions {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf(
			"LIMIT_EXCEEDED: the session is subscribed to %d resources, which is the limit; unsubscribe from one "+
				"before you subscribe to %s", MaxSubscriptions, uri)}
	}
	if !active {
		s.pending[uri] = version
	}
	return nil
}

// unsubscribe ends a subscription. It succeeds if there is none.
func (a *agentServer) unsubscribe(_ context.Context, req *sdk.UnsubscribeRequest) error {
	s := &a.subscriptions
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, req.Params.URI)
	delete(s.pending, req.Params.URI)
	return nil
}

// acknowledged is the middleware of sent messages that starts the pending subscriptions once the
// acknowledgement of subscriptions/listen was sent.
func (a *agentServer) acknowledged(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if method == "notifications/subscriptions/acknowledged" {
			defer a.subscriptions.start()
		}
		return next(ctx, method, req)
	}
}

// versionOf returns a text that differs for every version of a resource. Its error is one of the
// protocol.
func (a *agentServer) versionOf(ctx context.Context, uri string) (string, error) {
	if uri == a.briefsURI() {
		got, err := persist(ctx, a, func(ctx context.Context) (*agentv1.ListBriefsResponse, error) {
			return a.agents.ListBriefs(a.as(ctx), &agentv1.ListBriefsRequest{AgentId: a.agentID, PageSize: 1})
		})
		if err != nil {
			return "", a.protocolError(err)
		}
		if len(got.GetBriefs()) == 0 {
			return "none", nil
		}
		return got.GetBriefs()[0].GetBriefId(), nil
	}
	wi, ok := a.itemOf(uri)
	if !ok {
		return "", sdk.ResourceNotFoundError(uri)
	}
	// A plan that is replaced while it is read is shown as unreadable once. That is no version:
	// the change would be notified twice.
	for again := false; ; again = true {
		got, err := persist(ctx, a, func(ctx context.Context) (*workv1.GetWorkItemResponse, error) {
			return a.work.GetWorkItem(a.as(ctx), &workv1.GetWorkItemRequest{
				AgentId: a.agentID, WorkItemId: wi,
				OmitTodoList: true,
			})
		})
		switch {
		case errors.Is(err, fault.NotFound), errors.Is(err, fault.PermissionDenied),
			errors.Is(err, fault.InvalidArgument):
			return "", sdk.ResourceNotFoundError(uri)
		case err != nil:
			return "", a.protocolError(err)
		}
		if plan := got.GetWorkItem().GetPlanArtifact(); again || plan.GetProblem() != "unreadable" {
			return plan.GetSha256() + plan.GetProblem(), nil
		}
	}
}

// watchSubscribed notifies the client of changes of subscribed resources until ctx ends. It
// compares them when an event reports a change, and every Config.Poll.
func (a *agentServer) watchSubscribed(ctx context.Context) {
	tick := time.NewTicker(a.cfg.Poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-a.subscriptions.changed:
		}
		for uri := range a.subscriptions.snapshot() {
			version, err := a.versionOf(ctx, uri)
			if err != nil || !a.subscriptions.update(uri, version) {
				continue // after an error the next comparison finds the change
			}
			if a.srv.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: uri}) != nil {
				return // the client is gone
			}
		}
	}
}
