package mcp

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// Path is where the handler expects to be mounted; the agent's id follows.
const Path = "/mcp/"

type serverKey struct{}

// Handler serves all agents over streamable HTTP at Path. It expects the actor
// of the request in its context and the body bounded; refuse answers what is
// wrong before the protocol begins. Every request stands for itself: there are
// no sessions, so nothing is lost by a restart and any instance can answer.
func (s *Service) Handler(refuse func(http.ResponseWriter, *http.Request, error)) http.Handler {
	protocol := sdk.NewStreamableHTTPHandler(func(r *http.Request) *sdk.Server {
		srv, _ := r.Context().Value(serverKey{}).(*sdk.Server)
		return srv
	}, &sdk.StreamableHTTPOptions{
		Stateless: true, MaxRequestBodyBytes: s.cfg.MaxBody, PropagateRequestCancellation: true,
		DisableLocalhostProtection: true, // the gateway checks Host and Origin, by its own settings
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agentID := strings.TrimPrefix(r.URL.Path, Path)
		create, err := createOf(r)
		if err == nil {
			err = fault.Name("agent_id", agentID)
		}
		if err == nil && r.Method == http.MethodPost {
			err = s.admit(r.Context(), agentID, create)
		}
		if err != nil {
			refuse(w, r, err)
			return
		}
		actor := rpc.ActorFrom(r.Context())
		as := func(ctx context.Context) context.Context { return rpc.WithActor(ctx, actor) }
		ctx := context.WithValue(r.Context(), serverKey{}, s.server(agentID, as).srv)
		protocol.ServeHTTP(w, r.WithContext(ctx))
	})
}

// createOf reads ?create=true and lets no other parameter pass.
func createOf(r *http.Request) (bool, error) {
	create := false
	for name, values := range r.URL.Query() {
		if name != "create" || len(values) != 1 {
			return false, fault.UnknownField.Newf("the address takes one parameter, create; %q is not known", name).With("field", name)
		}
		var err error
		if create, err = strconv.ParseBool(values[0]); err != nil {
			return false, fault.Invalid("create", values[0], "must be true or false")
		}
	}
	return create, nil
}
