package identity

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
)

const (
	// maxKeyAgents and maxKeyTools bound the agents and tools that a key is limited to: its actor, which has them, is
	// a header of calls between services.
	maxKeyAgents = 20
	maxKeyTools  = 50
	// maxToolName is the longest name of a tool, in characters.
	maxToolName = 64
)

// agentless are the methods that a key may call which is limited to agents although they name none, because
// they return nothing of any agent.
var agentless = []string{
	identityv1.IdentityService_WhoAmI_FullMethodName,
	"/quartet.board.v1.BoardService/GetTemplate",
}

// reflections is the prefix of the methods by which a server describes itself.
const reflections = "/grpc.reflection."

// Within returns PERMISSION_DENIED if a key is limited to agents or tools and makes a call beyond its
// limits (SPEC I17). A key that is limited to agents has to name at least one in each request, and only those. A
// key that is limited to tools may call these, list them, and ask who it is.
func Within(a rpc.Actor, method string, req any) error {
	if a.Agents == "" && a.Tools == "" || strings.HasPrefix(method, reflections) {
		return nil
	}
	if err := withinTools(a, method, req); err != nil {
		return err
	}
	return WithinAgents(a, method, req)
}

// WithinAgents is the part of Within about agents. It is for calls that a tool makes, for an actor that may
// call the tool.
func WithinAgents(a rpc.Actor, method string, req any) error {
	if a.Agents == "" || slices.Contains(agentless, method) {
		return nil
	}
	var named []string
	if m, ok := req.(proto.Message); ok {
		named = agentsOf(m.ProtoReflect(), nil)
	}
	_, name, _ := strings.Cut(method[1:], "/")
	if len(named) == 0 {
		return fault.PermissionDenied.New("the key is limited to agents "+list(a.Agents)+", so "+name+
			" must name one of them",
			"key_id", a.KeyID, "principal", a.Principal, "method", method)
	}
	for _, id := range named {
		if !a.Agents.Has(id) {
			return fault.PermissionDenied.New("the key is limited to agents "+list(a.Agents)+" and may not call "+name+
				" for agent "+id,
				"key_id", a.KeyID, "principal", a.Principal, "method", method, "agent_id", id)
		}
	}
	return nil
}

// withinTools returns PERMISSION_DENIED if a key is limited to tools and makes a call beyond that limit, see Within.
func withinTools(a rpc.Actor, method string, req any) error {
	if a.Tools == "" {
		return nil
	}
	switch method {
	case "/quartet.agent.v1.AgentService/ListTools", identityv1.IdentityService_WhoAmI_FullMethodName:
		return nil
	case "/quartet.agent.v1.AgentService/CallTool":
		call, ok := req.(interface{ GetName() string })
		if ok && a.Tools.Has(call.GetName()) {
			return nil
		}
		return fault.PermissionDenied.New("the key is limited to tools and may call only "+list(a.Tools),
			"key_id", a.KeyID, "principal", a.Principal, "method", method)
	}
	_, name, _ := strings.Cut(method[1:], "/")
	return fault.PermissionDenied.New(
		"the key is limited to tools: it may call CallTool, ListTools and WhoAmI, but not "+name,
		"key_id", a.KeyID, "principal", a.Principal, "method", method)
}

// agentsOf appends the ids of agents that a message and the messages in it name. Fields that name agents are
// agent_id, agent_ids, those that end so, and session_id, since the sessions of boards are agents.
func agentsOf(m protoreflect.Message, ids []string) []string {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(fd.Name())
		switch {
		case fd.IsMap():
		case fd.Kind() == protoreflect.MessageKind && fd.IsList():
			for i := range v.List().Len() {
				ids = agentsOf(v.List().Get(i).Message(), ids)
			}
		case fd.Kind() == protoreflect.MessageKind:
			ids = agentsOf(v.Message(), ids)
		case fd.Kind() != protoreflect.StringKind:
		case fd.IsList() && strings.HasSuffix(name, "agent_ids"):
			for i := range v.List().Len() {
				ids = append(ids, v.List().Get(i).String())
			}
		case strings.HasSuffix(name, "agent_id") || name == "session_id":
			ids = append(ids, v.String())
		}
		return true
	})
	return ids
}

// validLimits validates the agents and tools that a new key is limited to.
func validLimits(req *identityv1.CreateKeyRequest) error {
	role := req.GetRole()
	switch {
	case len(req.GetAgentIds()) > 0 && role != identityv1.Role_ROLE_OPERATOR && role != identityv1.Role_ROLE_RUNNER &&
		role != identityv1.Role_ROLE_INTEGRATION:
		return fault.Invalid("agent_ids", strings.Join(req.GetAgentIds(), ","),
			"must be left out: keys of role operator, runner and integration can be limited to agents")
	case len(req.GetTools()) > 0 && role != identityv1.Role_ROLE_OPERATOR && role != identityv1.Role_ROLE_AGENT:
		return fault.Invalid("tools", strings.Join(req.GetTools(), ","),
			"must be left out: keys of role operator and agent can be limited to tools")
	}
	tool := func(field, name string) error {
		if strings.Contains(name, ",") {
			return fault.Invalid(field, name, "must be the name of a tool, which has no comma")
		}
		return fault.Text(field, name, maxToolName, true)
	}
	return fault.First(validNames("agent_ids", req.GetAgentIds(), maxKeyAgents, fault.Name),
		validNames("tools", req.GetTools(), maxKeyTools, tool))
}

// validNames validates a list of names: there are no more than most, all are different, and valid accepts each.
func validNames(field string, names []string, most int, valid func(field, name string) error) error {
	if err := fault.Entries(field, len(names), most); err != nil {
		return err
	}
	for i, name := range names {
		if err := valid(field+"["+strconv.Itoa(i)+"]", name); err != nil {
			return err
		}
		if slices.Contains(names[:i], name) {
			return fault.Invalid(field+"["+strconv.Itoa(i)+"]", name, "is there twice")
		}
	}
	return nil
}

// list returns names as messages have them.
func list(names rpc.Names) string { return strings.Join(names.List(), ", ") }
