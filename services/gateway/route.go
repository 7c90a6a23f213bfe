package gateway

import (
	"fmt"
	"net/http"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	protofiles "quartet/proto"
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
	var file struct {
		HTTP struct {
			Rules []struct {
				Selector                      string
				Get, Put, Post, Delete, Patch string
				Body                          string
			}
		}
	}
	if err := yaml.Unmarshal(protofiles.RESTMap, &file); err != nil {
		return nil, fmt.Errorf("gateway: the REST map: %w", err)
	}
	table := routeTable{}
	for _, rule := range file.HTTP.Rules {
		httpMethod, pattern := "", ""
		for m, p := range map[string]string{
			http.MethodGet: rule.Get, http.MethodPut: rule.Put, http.MethodPost: rule.Post, http.MethodDelete: rule.Delete, http.MethodPatch: rule.Patch,
		} {
			if p != "" {
				httpMethod, pattern = m, p
			}
		}
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(rule.Selector))
		if err != nil {
			return nil, fmt.Errorf("gateway: the REST map names %s: %w", rule.Selector, err)
		}
		md, ok := d.(protoreflect.MethodDescriptor)
		if !ok {
			return nil, fmt.Errorf("gateway: the REST map names %s, which is no RPC", rule.Selector)
		}
		input, err := protoregistry.GlobalTypes.FindMessageByName(md.Input().FullName())
		if err != nil {
			return nil, fmt.Errorf("gateway: the request of %s: %w", rule.Selector, err)
		}
		method := "/" + string(md.Parent().FullName()) + "/" + string(md.Name())
		table[routeKey(httpMethod, strings.ReplaceAll(pattern, "}", "=*}"))] = &route{
			pattern: pattern, method: method, input: input, body: rule.Body != "",
			waits:  md.IsStreamingServer() || waits != nil && waits(method),
			traced: !md.IsStreamingServer() && method != agentv1.AgentService_AcquireTurn_FullMethodName,
		}
	}
	return table, nil
}
