package tools

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/plane"
)

// MaxNesting is how deep arguments and results may be nested. The journal stores nothing
// that is nested deeper.
const MaxNesting = 32

// CheckNesting refuses a struct that is nested too deep.
func CheckNesting(field string, s *structpb.Struct) error {
	if deeper(structpb.NewStructValue(s), MaxNesting) {
		return fault.Invalid(field, fmt.Sprintf("nested more than %d deep", MaxNesting),
			fmt.Sprintf("must be nested at most %d deep", MaxNesting))
	}
	return nil
}

// deeper reports whether a value is nested deeper than n.
func deeper(v *structpb.Value, n int) bool {
	var below []*structpb.Value
	switch k := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		below = slices.Collect(maps.Values(k.StructValue.GetFields()))
	case *structpb.Value_ListValue:
		below = k.ListValue.GetValues()
	default:
		return false
	}
	return n == 0 || slices.ContainsFunc(below, func(v *structpb.Value) bool { return deeper(v, n-1) })
}

// CallRequestID returns the request id of a call of a round. Repeating the call returns
// the first result.
func CallRequestID(runID string, round *agentv1.Round, index int) string {
	return fmt.Sprintf("%s/%d/%d", runID, round.GetIndex(), index)
}

// Scope is the context of a call.
type Scope struct {
	Agent      plane.Key
	RunID      string        // empty outside of a run
	TurnID     string        // empty outside of a turn
	WorkItemID string        // the item that the call is bound to; empty for none
	RequestID  string        // of the request that the call becomes
	Remaining  time.Duration // what is left of the time for the round's calls
	NoText     bool          // the round has no text that could be a report
}

// Request builds the request of a call from its arguments. It refuses arguments that the runtime
// sets, that do not exist or are malformed, and the lack of a required one.
func (t Tool) Request(scope Scope, arguments *structpb.Struct) (proto.Message, error) {
	args := arguments.AsMap()
	for _, own := range []string{"agent_id", "request_id", "session_id"} {
		if _, given := args[own]; given && (own != "agent_id" || !t.anyAgent) {
			return nil, fault.UnknownField.Newf("%s: argument %q is set by the runtime; leave it out", t.Name, own)
		}
	}
	lack := t.missingArgument(args) // reported after arguments that do not exist
	if t.adapt != nil {
		t.adapt(args, scope.Remaining)
	}
	req := t.NewRequest()
	if err := durations(args, req.ProtoReflect().Descriptor(), ""); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, fault.MalformedJSON.Newf("%s: the arguments are not JSON: %v", t.Name, err)
	}
	if err := pbjson.Unmarshal(raw, req); err != nil {
		return nil, err
	}
	if lack != nil {
		return nil, lack
	}
	if spawn, ok := req.(*agentv1.SpawnAgentRequest); ok {
		if spawn.GetPreset() != agentv1.Preset_PRESET_PUBLIC_NAMED {
			spawn.ParentAgentId = scope.Agent.ID
		}
	} else {
		set(req, "agent_id", scope.Agent.ID, !t.anyAgent)
		set(req, "session_id", scope.Agent.ID, true)
	}
	if t.Mutates {
		set(req, "request_id", scope.RequestID, true)
	}
	if t.bound && scope.WorkItemID != "" {
		set(req, "work_item_id", scope.WorkItemID, false)
	}
	if scope.TurnID != "" {
		if err := t.unbound(req); err != nil {
			return nil, err
		}
	}
	return req, nil
}

// TakesFocus reports whether the caller, outside of a turn, must call Focus to set the work item of a
// request: the request names none, the tool is then about the item in focus, and the plane does not
// look that up itself.
func (t Tool) TakesFocus(req proto.Message) bool {
	r, ok := req.(interface{ GetWorkItemId() string })
	return ok && t.bound && !t.focused && r.GetWorkItemId() == ""
}

// Focus sets the work item of a request to itemID, the item in focus. If itemID is empty because
// none is in focus, it refuses a request that needs an item; others are then about the agent itself.
func (t Tool) Focus(req proto.Message, itemID string) error {
	if t.needsItem && itemID == "" {
		return fault.Invalid("work_item_id", "",
			"must be given, or PickWorkItem called before: no work item is in focus")
	}
	set(req, "work_item_id", itemID, true)
	return nil
}

// unbound completes a request in a turn that is bound to no item and whose call names none:
// a wait is then the agent's own, and what needs an item is refused.
func (t Tool) unbound(req proto.Message) error {
	r, ok := req.(interface{ GetWorkItemId() string })
	if !ok || !t.bound || r.GetWorkItemId() != "" {
		return nil
	}
	if t.needsItem {
		return fault.Invalid("work_item_id", "", "must be given: this turn is bound to no work item; PickWorkItem "+
			"binds it to one")
	}
	if wait, ok := req.(*waitingv1.WaitForRequest); ok {
		wait.Own = true
	}
	return nil
}

// set sets a string field, if the message has such a field. Without force it leaves a field that is set.
func set(m proto.Message, field, value string, force bool) {
	r := m.ProtoReflect()
	fd := r.Descriptor().Fields().ByName(protoreflect.Name(field))
	if fd == nil || fd.Kind() != protoreflect.StringKind || !force && r.Has(fd) {
		return
	}
	r.Set(fd, protoreflect.ValueOfString(value))
}
