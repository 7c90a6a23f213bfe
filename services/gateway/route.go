package gateway

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/rpc"
)

// route is one line of the REST map: an HTTP method and a path that call an RPC.
type route struct {
	pattern string                   // such as /v1/agents/{agent_id}
	method  string                   // such as /quartet.agent.v1.AgentService/GetAgent
	input   protoreflect.MessageType // of the request message
	body    bool                     // the request is the body; otherwise it is the query string of a GET or DELETE
	// waits says that the RPC is a stream or may wait for most of a minute, and so is ended
	// when the gateway stops.
	waits bool
	// traced says that a request without a trace begins one. A stream does not, nor does
	// AcquireTurn: the turn that it returns has a trace of its own.
	traced bool
}

// routeTable finds the route of a request by its HTTP method and the pattern that the mux
// matched, in the form of runtime.Pattern.String.
type routeTable map[string]*route

// routeKey returns the key of a route in the table.
func routeKey(httpMethod, pattern string) string { return httpMethod + " " + pattern }

// newRouteTable reads the REST map that is part of the binary. waits is Deps.Waits.
func newRouteTable(waits func(method string) bool) (routeTable, error) {
	rules, err := restRules()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	table := routeTable{}
	for _, rule := range rules {
		md := rule.RPC
		method := "/" + string(md.Parent().FullName()) + "/" + string(md.Name())
		input, _, err := rpc.MessageTypes(method)
		if err != nil {
			return nil, fmt.Errorf("gateway: the request of %s: %w", md.FullName(), err)
		}
		table[routeKey(rule.HTTPMethod, strings.ReplaceAll(rule.Pattern, "}", "=*}"))] = &route{
			pattern: rule.Pattern, method: method, input: input, body: rule.Body,
			waits:  md.IsStreamingServer() || waits != nil && waits(method),
			traced: !md.IsStreamingServer() && method != agentv1.AgentService_AcquireTurn_FullMethodName,
		}
	}
	return table, nil
}
