package state

import (
	"encoding/json"
	"hash/fnv"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// A completed turn makes progress if a call of it changed something or had an effect
// (SPEC D9). Reads, refusals and updates that leave a record as it was are no progress.
// Neither is a call that may be repeated without anything coming of it, such as a command,
// if its tool, arguments and result equal those of a call of the last three turns.

const (
	// maxStalls is how many turns in a row without progress stall an item.
	maxStalls = 3
	// comparedTurns is how many turns a call is compared with, packed.Kept at most.
	comparedTurns = 3
	// keptStalls bounds the items that an agent remembers as stalled, or about to be.
	keptStalls = 64
)

// stall counts the completed turns in a row about an item that made no progress.
type stall struct {
	itemID string
	turns  int32
	since  *timestamppb.Timestamp // when the last of them started
	// revision is the revision of the item on which the tick of the last of them rests, 0 if it names none. Unlike
	// times, revisions can be compared when a clock was changed.
	revision int64
}

// repeatable reports whether a call of a tool is progress only if it differs from those of
// the last turns. The calls of all other tools make or change a record: those that change
// nothing are not recorded as mutations.
func repeatable(tool string) bool {
	switch tool {
	case "CreateWorkItem", "UpdateWorkItem", "WaitFor", "CreateWait", "CreateTimer", "CreateExternalTrigger",
		"SpawnAgent":
		return false
	}
	return true
}

// recordEffect records for progressed a call of the open turn that the journal has as a mutation. If the tool is
// repeatable, it keeps the fingerprint of the call, which is progress unless a recent turn had the same one. For
// other tools it records that the turn changed something. r is the call's result; it may be nil.
func (t *Turn) recordEffect(call *agentv1.ToolCall, r *agentv1.ToolResult) {
	if repeatable(call.GetName()) {
		t.effects = append(t.effects, fingerprint(call.GetName(), call.GetArguments(), r))
		return
	}
	t.changed = true
}

// progressed reports whether the open turn made progress. Before that it adds the effects of the
// calls that the runner executed itself to the turn's effects, so it is called once, when the turn
// ends.
func (a *Agent) progressed() bool {
	t := a.OpenTurn
	for _, r := range t.Rounds {
		for _, l := range r.GetLocalToolResults() {
			if l.GetStatus() == agentv1.ToolStatus_TOOL_STATUS_SUCCESS {
				t.effects = append(t.effects, fingerprint(l.GetToolName(), localArguments(r, l.GetCallId()), l))
			}
		}
	}
	if t.changed {
		return true
	}
	before := a.EndedTurns.Recent()
	before = before[max(0, len(before)-comparedTurns):]
	return slices.ContainsFunc(t.effects, func(e uint64) bool {
		return !slices.ContainsFunc(before, func(o *Turn) bool { return slices.Contains(o.effects, e) })
	})
}

// localArguments returns the arguments of a call that the runner executed, nil if it did not
// report them.
func localArguments(r *agentv1.Round, callID string) *structpb.Struct {
	for _, c := range r.GetLocalToolCalls() {
		if c.GetCallId() == callID {
			return c.GetArguments()
		}
	}
	return nil
}

// countProgress counts a completed turn for its item: the one that it was bound to, else the
// one that its tick is about. A turn about no item counts for none: what woke the agent
// itself wakes it once.
func (a *Agent) countProgress(t *agentv1.Turn, progressed bool) {
	about, tick := t.GetBoundWorkItemId(), a.Lane.Get(t.GetMessageId()).GetTick()
	if about == "" {
		about = tick.GetWorkItemId()
	}
	if progressed {
		a.clearStalls(func(id string) bool { return id == about || id == t.GetWorkItemId() })
		return
	}
	if about == "" {
		return
	}
	next := stall{itemID: about, turns: 1, since: t.GetStartedAt()}
	// A reminder writes the item itself, after its tick was decided.
	if tick.GetWorkItemId() == about && tick.GetReason() != agentv1.TickReason_TICK_REASON_RECHECK {
		next.revision = tick.GetRevision()
	}
	for _, s := range a.stalls {
		if s.itemID == about {
			next.turns += s.turns
		}
	}
	a.clearStalls(func(id string) bool { return id == about })
	if len(a.stalls) == keptStalls {
		a.stalls = a.stalls[1:]
	}
	a.stalls = append(a.stalls, next)
}

// clearStalls forgets the stalls of the items that which accepts.
func (a *Agent) clearStalls(which func(itemID string) bool) {
	a.stalls = slices.DeleteFunc(slices.Clone(a.stalls), func(s stall) bool { return which(s.itemID) })
}

// receiveInput forgets the stalls that a message ends: those of the item that it is about, or
// all of them if it is about none. The result of a task ends none, and neither does a child's
// question: the agent started both itself, so that otherwise a command that is repeated
// permanently would be progress. They have turns of their own all the same.
func (a *Agent) receiveInput(m *agentv1.Message) {
	if m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT || IsQuestion(m) {
		return
	}
	a.edit(func(r *agentv1.Agent) { r.IdleTurns = 0 })
	a.clearStalls(func(id string) bool { return m.GetWorkItemId() == "" || id == m.GetWorkItemId() })
}

// Stalled returns the items about which the scheduler makes no tick until input or a change: those
// whose last maxStalls turns made no progress.
func (a *Agent) Stalled() []*agentv1.StalledItem {
	var items []*agentv1.StalledItem
	for _, s := range a.stalls {
		if s.turns >= maxStalls {
			items = append(items, &agentv1.StalledItem{
				WorkItemId: s.itemID, Turns: s.turns, Since: s.since,
				Revision: s.revision,
			})
		}
	}
	return items
}

// fingerprint identifies a call with what came of it. The fields of the result with ids, times and revisions differ
// with every call and are left out. The summary text is used only if there is no result, and as it is.
func fingerprint(tool string, args *structpb.Struct, r *agentv1.ToolResult) uint64 {
	h := fnv.New64a()
	part := func(v any) {
		raw, err := json.Marshal(v) // maps are sorted
		if err != nil {
			raw = []byte(err.Error())
		}
		_, _ = h.Write(raw) // a hash does not fail
		_, _ = h.Write([]byte{0})
	}
	part(tool)
	part(args.AsMap())
	part(r.GetStatus())
	part(r.GetError().GetKind())
	if r.GetResult() == nil {
		part(r.GetSummaryText())
	}
	part(lasting(r.GetResult().AsMap()))
	return h.Sum64()
}

// lasting returns a value without the fields that differ with every call.
func lasting(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, below := range v {
			if !strings.HasSuffix(k, "_id") && !strings.HasSuffix(k, "_at") && k != "revision" && k != "wal_seq" {
				out[k] = lasting(below)
			}
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for _, below := range v {
			out = append(out, lasting(below))
		}
		return out
	}
	return v
}
