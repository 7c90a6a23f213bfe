package rpc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	"quartet/pkg/tracing"
)

const (
	authHeader     = "authorization"
	actorHeader    = "quartet-actor"
	replayedHeader = "idempotent-replayed"

	identityCache = 4096
)

// identity authenticates callers by the metadata of their requests.
type identity struct {
	auth                Authenticator
	holder              Holder                 // auth, if its credentials may end meanwhile
	requireCertificates bool                   // of services that call over the network
	spokeFor            *recent[string, Actor] // decoded quartet-actor headers
}

func newIdentity(auth Authenticator, requireCertificates bool) *identity {
	holder, _ := auth.(Holder)
	return &identity{
		auth: auth, holder: holder, requireCertificates: requireCertificates,
		spokeFor: newRecent[string, Actor](identityCache),
	}
}

// admit returns ctx with its caller, or the error of the Authenticator. A service's credential may bring the actor on
// whose behalf it calls in a header; the caller is that actor then, via the service. If requireCertificates is set,
// such a credential counts only with the service's certificate, except for calls within the process. A malformed header
// and a missing certificate are UNAUTHENTICATED.
func (i *identity) admit(ctx context.Context) (context.Context, error) {
	bearer := ""
	// An empty header is a wrong credential and not an absent one.
	if values := metadata.ValueFromIncomingContext(ctx, authHeader); len(values) > 0 {
		if bearer = BearerOf(values[0]); bearer == "" {
			return nil, fault.Unauthenticated.New("the Authorization header must be: Bearer <token>")
		}
	}
	a, err := i.auth.Authenticate(ctx, bearer)
	if err != nil {
		return nil, err
	}

	// A service may call on behalf of another actor.
	c := &caller{actor: a}
	if a.Role == RoleService {
		if i.requireCertificates {
			if err := requireServiceCertificate(ctx); err != nil {
				return nil, err
			}
		}
		c.via = a.Principal
		if values := metadata.ValueFromIncomingContext(ctx, actorHeader); len(values) > 0 {
			if c.actor, err = i.actorFromHeader(values[0]); err != nil {
				return nil, err
			}
		}
	}
	return context.WithValue(ctx, callerKey{}, c), nil
}

// BearerOf returns the credential in an Authorization header of the form "Bearer <token>", "" for any other header.
func BearerOf(header string) string {
	const scheme = "bearer "
	if len(header) < len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return ""
	}
	return header[len(scheme):]
}

// hold returns a context for a long call that was admitted. It ends when the credential does, if that can end. The
// caller must call the returned function.
func (i *identity) hold(ctx context.Context) (context.Context, context.CancelFunc) {
	values := metadata.ValueFromIncomingContext(ctx, authHeader)
	if i.holder == nil || len(values) == 0 {
		return ctx, func() {}
	}
	return i.holder.Hold(ctx, BearerOf(values[0]))
}

// ended returns the error of a held call that returned err: if the call failed and its credential has ended, the reason
// for that, and otherwise err.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && err != nil && errors.Is(cause, fault.Unauthenticated) {
		return cause
	}
	return err
}

// actorFromHeader returns the actor in a quartet-actor header, or UNAUTHENTICATED if there is none in it.
func (i *identity) actorFromHeader(header string) (Actor, error) {
	if a, ok := i.spokeFor.get(header); ok {
		return a, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(header)
	var a Actor
	if err == nil {
		err = json.Unmarshal(raw, &a)
	}
	if err != nil || a.Role == "" || a.Namespace == "" {
		return Actor{}, fault.Unauthenticated.New("the " + actorHeader + " header is not an actor")
	}
	i.spokeFor.put(header, a)
	return a, nil
}

// credential is the credential of outgoing calls.
type credential struct {
	token   func() string // "" for none
	self    string        // header of a call without actor
	encoded *recent[Actor, string]
	tracer  *tracing.Tracer
}

func newCredential(service string, token func() string) *credential {
	c := &credential{token: token, encoded: newRecent[Actor, string](identityCache)}
	c.self = encodeActor(Actor{Namespace: DefaultNamespace, Principal: service, Role: RoleService})
	return c
}

// attach returns ctx with the metadata of an outgoing call: the trace, this process's credential, and the actor of ctx,
// or the process itself if ctx has none.
func (c *credential) attach(ctx context.Context) context.Context {
	if c.tracer.On() {
		if traceparent := tracing.Carried(ctx); traceparent != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, tracing.Header, traceparent)
		}
	}
	token := c.token()
	if token == "" {
		return ctx
	}
	header := c.self
	if in, ok := ctx.Value(callerKey{}).(*caller); ok && in.actor.Role != "" {
		if header, ok = c.encoded.get(in.actor); !ok {
			header = encodeActor(in.actor)
			c.encoded.put(in.actor, header)
		}
	}
	return metadata.AppendToOutgoingContext(ctx, append(origin(ctx), authHeader, "Bearer "+token, actorHeader,
		header)...)
}

func encodeActor(a Actor) string {
	raw, err := json.Marshal(a)
	if err != nil {
		panic("rpc: an Actor always marshals: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// Replayed sets a header that says that the response is that of an earlier request with the
// same request_id (SPEC X2).
func Replayed(ctx context.Context) {
	// It fails only without a call, as in a direct test.
	_ = grpc.SetHeader(ctx, metadata.Pairs(replayedHeader, "true"))
}

// WasReplayed reads the header that Replayed sets.
func WasReplayed(header metadata.MD) bool {
	v := header.Get(replayedHeader)
	return len(v) > 0 && v[0] == "true"
}
