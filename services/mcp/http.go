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

// Path is the path at which the handler is mounted. The agent's id follows it.
const Path = "/mcp/"

// serverKey is the context key of the agent's server.
type serverKey struct{}

// Handler serves all agents over streamable HTTP at Path. The context of a request must
// have its actor. refuse writes the response to a request that is refused before the
// protocol starts. There are no sessions, so nothing is lost by a restart and every
// instance can answer each request.
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
		create, tools, err := parametersOf(r)
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
		ctx := context.WithValue(r.Context(), serverKey{}, s.server(serverOptions{agentID: agentID, tools: tools}, as).
			srv)
		protocol.ServeHTTP(w, r.WithContext(ctx))
	})
}

// parametersOf reads ?create=true and ?tools=memory, and refuses other parameters.
func parametersOf(r *http.Request) (create bool, tools string, err error) {
	for name, values := range r.URL.Query() {
		if name != "create" && name != "tools" || len(values) != 1 {
			return false, "", fault.UnknownField.Newf("the address takes the parameters create and tools, each once; "+
				"%q is not one", name).With("field", name)
		}
		if name == "tools" {
			tools = values[0]
			err = checkTools(tools)
		} else if create, err = strconv.ParseBool(values[0]); err != nil {
			err = fault.Invalid("create", values[0], "must be true or false")
		}
		if err != nil {
			return false, "", err
		}
	}
	return create, tools, nil
}
