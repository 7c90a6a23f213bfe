package model

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// call is what an agent can ask for, by itself or as a tool call in a round.
type call struct {
	tool   string
	args   map[string]any // as a tool call
	direct func(ctx context.Context, requestID string) (proto.Message, error)
	other  func(ctx context.Context, requestID string) error // the same with other arguments
	want   func() []string                                   // what the model answers: "" or reasons
	apply  func(answer *structpb.Struct)
	// completes is the item that a completion in a round may report on.
	completes string
	writes    func() bool
}

// plain returns an answer in the form that tool results have.
func plain(m proto.Message) *structpb.Struct {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	s := &structpb.Struct{}
	if err == nil {
		err = protojson.Unmarshal(raw, s)
	}
	if err != nil {
		panic(err)
	}
	return s
}

// at reads a string in an answer.
func at(s *structpb.Struct, path ...string) string {
	v := structpb.NewStructValue(s)
	for _, p := range path {
		v = v.GetStructValue().GetFields()[p]
	}
	return v.GetStringValue()
}

// warned reports whether an answer has a warning of a kind, in the words of tools or in those
// of the API.
func warned(s *structpb.Struct, kind string) bool {
	for _, w := range s.GetFields()["warnings"].GetListValue().GetValues() {
		got := w.GetStructValue().GetFields()["kind"].GetStringValue()
		if got == kind || got == "WARNING_KIND_"+strings.ToUpper(kind) {
			return true
		}
	}
	return false
}

func only(reason string) []string { return []string{reason} }

// itemID picks an item: mostly one of the agent's open ones, sometimes any, one of another
// agent's, or none that exists.
func (r *run) itemID(a *agent, n int) string {
	var own []string
	for _, i := range a.items {
		if !i.done || n%5 == 0 {
			own = append(own, i.id)
		}
	}
	switch k := n / 7; {
	case k%60 == 0:
		return "wi_00000000000000000000000zzz"
	case k%60 == 1:
		for _, b := range r.m.agents {
			if b != a && len(b.items) > 0 {
				return b.items[k/60%len(b.items)].id
			}
		}
	case len(own) > 0:
		return own[k/60%len(own)]
	}
	return "wi_00000000000000000000000zzz"
}

var todoLists = [][]todo{
	{},
	{{"a", workv1.TodoState_TODO_STATE_PENDING}},
	{
		{"a", workv1.TodoState_TODO_STATE_COMPLETED},
		{"b", workv1.TodoState_TODO_STATE_IN_PROGRESS},
		{"c", workv1.TodoState_TODO_STATE_PENDING},
	},
	{{"a", workv1.TodoState_TODO_STATE_IN_PROGRESS}, {"b", workv1.TodoState_TODO_STATE_IN_PROGRESS}},
	{{"a", workv1.TodoState_TODO_STATE_COMPLETED}},
}

var todoWords = map[workv1.TodoState]string{
	workv1.TodoState_TODO_STATE_PENDING: "pending", workv1.TodoState_TODO_STATE_IN_PROGRESS: "in_progress",
	workv1.TodoState_TODO_STATE_COMPLETED: "completed",
}

var planWords = map[workv1.PlanStatus]string{
	workv1.PlanStatus_PLAN_STATUS_DRAFT: "draft", workv1.PlanStatus_PLAN_STATUS_READY: "ready",
	needsInput: "needs_input",
}

func protoTodos(all []todo) (out []*workv1.TodoItem) {
	for _, t := range all {
		out = append(out, &workv1.TodoItem{Text: t.text, State: t.state})
	}
	return out
}

func toolTodos(all []todo) []any {
	out := []any{}
	for _, t := range all {
		out = append(out, map[string]any{"text": t.text, "state": todoWords[t.state]})
	}
	return out
}

func (r *run) createCall(a *agent, n [6]int) *call {
	objective, plan, todos := fmt.Sprint("objective ", n[1]%5), workv1.PlanStatus(n[2]%6),
		todoLists[n[3]%len(todoLists)]
	if plan > needsInput {
		plan = 0
	}
	req := &workv1.CreateWorkItemRequest{
		AgentId: a.id, Objective: objective, PlanStatus: plan,
		TodoList: protoTodos(todos),
	}
	args := map[string]any{"objective": objective, "todo_list": toolTodos(todos)}
	if plan != 0 {
		args["plan_status"] = planWords[plan]
	}
	want := only("")
	if n[4]%30 == 0 {
		req.Objective, args["objective"], want = " ", " ", only("INVALID_ARGUMENT")
	}
	send := func(ctx context.Context, id string, objective string) (proto.Message, error) {
		req := proto.CloneOf(req)
		req.RequestId, req.Objective = id, objective
		return r.w.Items().CreateWorkItem(ctx, req)
	}
	return &call{
		tool: "CreateWorkItem", args: args, want: func() []string { return want },
		direct: func(ctx context.Context, id string) (proto.Message, error) {
			return send(ctx, id, req.GetObjective())
		},
		other: func(ctx context.Context, id string) error { _, err := send(ctx, id, "another"); return err },
		apply: func(s *structpb.Struct) {
			r.m.create(a, at(s, "work_item", "work_item_id"), objective, plan, todos)
			_, progress := (&item{todos: todos}).unfinished()
			r.must(warned(s, "several_in_progress") == (progress > 1), "warnings of a creation: %v", s)
		},
		writes: func() bool { return true },
	}
}

func (r *run) pickCall(a *agent, n [6]int) *call {
	id, reason := r.itemID(a, n[1]), ""
	if n[2]%2 == 0 {
		reason = "because"
	}
	send := func(ctx context.Context, request, why string) (proto.Message, error) {
		return r.w.Items().PickWorkItem(ctx, &workv1.PickWorkItemRequest{
			AgentId: a.id, RequestId: request,
			WorkItemId: id, Reason: why,
		})
	}
	args := map[string]any{"work_item_id": id}
	if reason != "" {
		args["reason"] = reason
	}
	return &call{
		tool: "PickWorkItem", args: args,
		direct: func(ctx context.Context, request string) (proto.Message, error) { return send(ctx, request, reason) },
		other:  func(ctx context.Context, request string) error { _, err := send(ctx, request, "another"); return err },
		want:   func() []string { _, no := r.m.open(a, id); return only(no) },
		apply: func(s *structpb.Struct) {
			i := r.m.items[id]
			want, previous := r.m.pick(i)
			r.must(warned(s, "reason_missing") == (want && reason == ""),
				"warnings of a pick: %v; a runnable item was left: %t", s, want)
			r.must(warned(s, "not_runnable") == !i.runnable(), "warnings of a pick: %v", s)
			r.must(at(s, "previous_work_item", "work_item_id") == previous, "a pick's previous item: %v, not %q", s,
				previous)
			r.must(at(s, "binding_note") != "", "a pick has no binding note")
			if r.inRound { // the calls that follow are bound to it (SPEC A6)
				a.turn.item = id
			}
		},
		writes: func() bool { return true },
	}
}

func (r *run) updateCall(a *agent, n [6]int) *call {
	id, c := r.itemID(a, n[1]), change{}
	req := &workv1.UpdateWorkItemRequest{AgentId: a.id, WorkItemId: id}
	args := map[string]any{"work_item_id": id}
	bad := ""
	set := n[2]
	if set%11 == 0 {
		c.objective = fmt.Sprint("objective ", n[3]%5)
		req.Objective, args["objective"] = &c.objective, c.objective
	}
	if set%5 == 0 {
		c.plan = workv1.PlanStatus(1 + n[3]%3)
		req.PlanStatus, args["plan_status"] = c.plan, planWords[c.plan]
	}
	if set%7 == 0 {
		list := todoLists[n[4]%len(todoLists)]
		c.todos = &list
		req.TodoList, args["todo_list"] = &workv1.TodoList{Items: protoTodos(list)}, toolTodos(list)
	}
	switch set % 4 {
	case 0:
		c.blocker = fmt.Sprint("blocker ", n[3]%3)
		req.BlockedBy, args["blocked_by"] = &c.blocker, c.blocker
	case 1, 2:
		c.clear = true
		req.ClearBlockedBy, args["blocked_by"] = true, nil
	}
	if set%13 == 0 {
		c.recheck = r.m.now.Add(time.Duration(1+n[5]%90) * time.Second)
		req.RecheckAt, args["recheck_at"] = timestamppb.New(c.recheck), c.recheck.Format(time.RFC3339Nano)
	}
	switch {
	case n[5]%37 == 0 && c.blocker != "":
		empty := " "
		req.BlockedBy, args["blocked_by"], bad = &empty, " ", "INVALID_ARGUMENT"
	case c == (change{}):
		bad = "INVALID_ARGUMENT" // nothing is given (SPEC W5)
	}
	conflict := n[5]%29 == 0
	send := func(ctx context.Context, request string, req *workv1.UpdateWorkItemRequest) (proto.Message, error) {
		req = proto.CloneOf(req)
		req.RequestId = request
		return r.w.Items().UpdateWorkItem(ctx, req)
	}
	wrong := int64(1 << 40)
	return &call{
		tool: "UpdateWorkItem", args: args,
		direct: func(ctx context.Context, request string) (proto.Message, error) {
			if conflict {
				req.ExpectedRevision = &wrong
			}
			return send(ctx, request, req)
		},
		other: func(ctx context.Context, request string) error {
			_, err := send(ctx, request, &workv1.UpdateWorkItemRequest{
				AgentId: a.id, WorkItemId: id,
				Objective: proto.String("another"),
			})
			return err
		},
		want: func() []string {
			_, no := r.m.open(a, id)
			switch {
			case bad != "" && no != "":
				return []string{bad, no} // whichever is looked at first
			case bad != "":
				return only(bad)
			case no == "" && req.ExpectedRevision != nil:
				return only("REVISION_CONFLICT")
			case no != "" && req.ExpectedRevision != nil:
				return []string{no, "REVISION_CONFLICT"}
			}
			return only(no)
		},
		apply: func(s *structpb.Struct) {
			changed := r.m.update(r.m.items[id], c)
			r.must(s.GetFields()["unchanged"].GetBoolValue() == !changed, "unchanged: %v, the model says %t", s,
				!changed)
			_, progress := r.m.items[id].unfinished()
			r.must(!warned(s, "several_in_progress") || progress > 1, "warnings of an update: %v", s)
			r.must(c.todos == nil || warned(s, "several_in_progress") == (progress > 1), "warnings of an update: %v", s)
		},
		writes: func() bool { return true },
	}
}

func (r *run) completeCall(a *agent, n [6]int) *call {
	id := r.itemID(a, n[1])
	if n[2]%2 == 0 && a.focus != "" {
		id = a.focus
	}
	already := false
	send := func(ctx context.Context, request string) (proto.Message, error) {
		return r.w.Items().CompleteWorkItem(ctx, &workv1.CompleteWorkItemRequest{
			AgentId: a.id, RequestId: request,
			WorkItemId: id,
		})
	}
	return &call{
		tool: "CompleteWorkItem", args: map[string]any{"work_item_id": id}, completes: id, direct: send,
		want: func() []string {
			i, no := r.m.own(a, id)
			if no == "" && !i.done {
				if _, blocking := r.m.running(i); blocking {
					return only("BLOCKING_EXECUTION")
				}
			}
			return only(no)
		},
		apply: func(s *structpb.Struct) {
			i := r.m.items[id]
			already = i.done
			tasks, _ := r.m.running(i)
			pending, progress := i.unfinished()
			current := i.current()
			r.must(s.GetFields()["already_completed"].GetBoolValue() == already, "already_completed: %v", s)
			if already {
				return
			}
			r.must(s.GetFields()["was_current"].GetBoolValue() == current, "was_current: %v, the model says %t", s,
				current)
			r.must(warned(s, "unfinished_todos") == (pending+progress > 0), "warnings of a completion: %v", s)
			r.must(warned(s, "active_tasks") == (tasks > 0), "warnings of a completion: %v", s)
			r.m.complete(i)
			if r.inRound && a.turn.item == i.id {
				a.turn.item = "" // there is nothing to be bound to any more
			}
		},
		writes: func() bool { return !already },
	}
}

// taskOf picks a task, sometimes one of another agent's.
func (r *run) taskOf(a *agent, n int) *task {
	var own, all []*task
	for _, t := range r.tasks {
		all = append(all, t)
		if t.owner == a {
			own = append(own, t)
		}
	}
	if n%20 != 0 {
		all = own
	}
	if len(all) == 0 {
		return nil
	}
	return all[max(0, len(all)-1-n/20%4)]
}

func (r *run) triggerOf(a *agent, n int) *trigger {
	var own []*trigger
	for _, t := range r.trigs {
		if t.owner == a {
			own = append(own, t)
		}
	}
	if len(own) == 0 {
		return nil
	}
	return own[max(0, len(own)-1-n%4)]
}

func (r *run) waitForCall(a *agent, n [6]int) *call {
	req := &waitingv1.WaitForRequest{AgentId: a.id, Reason: fmt.Sprint("wait ", r.fresh, " ", n[3]%3)}
	args := map[string]any{"reason": req.GetReason()}
	if n[1]%3 != 0 {
		req.WorkItemId = r.itemID(a, n[1]/3)
		args["work_item_id"] = req.GetWorkItemId()
	}
	w := &wait{owner: a, reason: req.GetReason()}
	var on *task
	bad := ""
	switch n[2] % 4 {
	case 0:
		w.kind, req.Wake, args["wake"] = operator, waitingv1.Wake_WAKE_OPERATOR_INPUT, "operator_input"
	case 1:
		w.kind, req.Wake, args["wake"] = onTask, waitingv1.Wake_WAKE_TASK_RESULT, "task_result"
		if on = r.taskOf(a, n[3]); on == nil {
			bad = "INVALID_ARGUMENT"
		} else {
			w.resource = on.id
		}
	case 2:
		w.kind, req.Wake, args["wake"] = external, waitingv1.Wake_WAKE_EXTERNAL, "external"
		if t := r.triggerOf(a, n[3]); t != nil && n[4]%2 == 0 {
			w.resource = t.id
		}
		switch n[4] % 3 {
		case 0:
			w.contentful, req.DeliveryMode, args["delivery_mode"] = true,
				waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL, "contentful"
		case 1:
			w.hint, req.DeliveryMode, args["delivery_mode"] = true, waitingv1.DeliveryMode_DELIVERY_MODE_WAKE_HINT,
				"wake_hint"
		}
	case 3:
		w.kind, req.Wake, args["wake"] = onTimer, waitingv1.Wake_WAKE_TIMER, "timer"
		after := time.Duration(1+n[3]%60) * time.Second
		if n[4]%40 == 0 {
			bad = "INVALID_ARGUMENT"
		} else {
			w.due, req.After, args["after"] = r.m.now.Add(after), durationpb.New(after), after.String()
		}
	}
	if w.resource != "" {
		req.Resource, args["resource"] = w.resource, w.resource
	}
	if n[5]%3 == 0 {
		after := time.Duration(1+n[5]/3%90) * time.Second
		w.recheck, req.RecheckAfter, args["recheck_after"] = r.m.now.Add(after), durationpb.New(after),
			fmt.Sprintf("%ds", int(after.Seconds()))
	}
	if !w.due.IsZero() {
		args["after"] = fmt.Sprintf("%ds", int(req.GetAfter().AsDuration().Seconds()))
	}
	owner := func() string {
		if req.GetWorkItemId() != "" {
			return req.GetWorkItemId()
		}
		if r.inRound { // in a turn that is bound to none the agent itself waits
			return a.turn.item
		}
		return a.focus
	}
	send := func(ctx context.Context, request string, change func(*waitingv1.WaitForRequest)) (proto.Message, error) {
		req := proto.CloneOf(req)
		req.RequestId = request
		change(req)
		return r.w.Waits().WaitFor(ctx, req)
	}
	return &call{
		tool: "WaitFor", args: args,
		direct: func(ctx context.Context, request string) (proto.Message, error) {
			return send(ctx, request, func(*waitingv1.WaitForRequest) {})
		},
		other: func(ctx context.Context, request string) error {
			_, err := send(ctx, request, func(q *waitingv1.WaitForRequest) { q.Reason = "another" })
			return err
		},
		want: func() (all []string) {
			if bad != "" {
				all = append(all, bad)
			}
			if id := owner(); id != "" {
				if _, no := r.m.open(a, id); no != "" {
					all = append(all, no)
				}
			}
			if on != nil && on.owner != a { // whose it is, or that it is not there
				all = append(all, "PERMISSION_DENIED", "NOT_FOUND")
			}
			if len(all) == 0 {
				all = only("")
			}
			return all
		},
		apply: func(s *structpb.Struct) {
			w.id, w.item = at(s, "wait", "wait_id"), owner()
			if on != nil && on.over { // resolved at once, and the agent is woken
				r.must(at(s, "wait", "status") == "resolved" || at(s, "wait", "status") == "WAIT_STATUS_RESOLVED",
					"a wait for a task that has ended stands: %v", s)
				r.m.register(w)
				r.m.resolve(w, true, w.resource)
				return
			}
			r.m.register(w)
			if w.item != "" {
				r.m.attach(*w) // the work plane is told by a call as well
			}
		},
		writes: func() bool { return true },
	}
}

func (r *run) createWaitCall(a *agent, n [6]int) *call {
	req := &waitingv1.CreateWaitRequest{AgentId: a.id, Source: "hub", Condition: "anything"}
	args := map[string]any{"source": "hub", "condition": "anything"}
	w := &wait{owner: a, intent: true, kind: external}
	if n[1]%4 != 0 {
		req.WorkItemId = r.itemID(a, n[1]/4)
		args["work_item_id"] = req.GetWorkItemId()
	}
	if t := r.triggerOf(a, n[2]); t != nil && n[2]%2 == 0 {
		w.resource, req.Resource, args["resource"] = t.id, t.id, t.id
	}
	switch n[3] % 3 {
	case 0:
		w.contentful, req.DeliveryMode, args["delivery_mode"] = true, waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL,
			"contentful"
	case 1:
		w.hint, req.DeliveryMode, args["delivery_mode"] = true, waitingv1.DeliveryMode_DELIVERY_MODE_WAKE_HINT,
			"wake_hint"
	}
	owner := func() string {
		if req.GetWorkItemId() == "" && r.inRound {
			return a.turn.item
		}
		return req.GetWorkItemId()
	}
	send := func(ctx context.Context, request, condition string) (proto.Message, error) {
		req := proto.CloneOf(req)
		req.RequestId, req.Condition = request, condition
		return r.w.Waits().CreateWait(ctx, req)
	}
	return &call{
		tool: "CreateWait", args: args,
		direct: func(ctx context.Context, request string) (proto.Message, error) {
			return send(ctx, request, "anything")
		},
		other: func(ctx context.Context, request string) error { _, err := send(ctx, request, "another"); return err },
		want: func() []string {
			if owner() == "" {
				return only("")
			}
			_, no := r.m.open(a, owner())
			return only(no)
		},
		apply: func(s *structpb.Struct) {
			w.id, w.item = at(s, "wait", "wait_id"), owner()
			r.m.register(w)
			if w.item != "" {
				r.m.attach(*w)
			}
		},
		writes: func() bool { return true },
	}
}

func (r *run) cancelWaitCall(a *agent, n [6]int) *call {
	id := "wt_00000000000000000000000zzz"
	var w *wait
	if len(a.waits) > 0 && n[2]%30 != 0 {
		w = a.waits[max(0, len(a.waits)-1-n[1]%6)]
		id = w.id
	}
	standing := w != nil && w.status == active
	return &call{
		tool: "CancelWait", args: map[string]any{"wait_id": id},
		direct: func(ctx context.Context, request string) (proto.Message, error) {
			return r.w.Waits().CancelWait(ctx, &waitingv1.CancelWaitRequest{
				AgentId: a.id, RequestId: request,
				WaitId: id,
			})
		},
		want: func() []string {
			if w == nil {
				return only("NOT_FOUND")
			}
			return only("")
		},
		apply:  func(*structpb.Struct) { r.m.end(w, cancelled) },
		writes: func() bool { return standing },
	}
}

// execute has a worker take a command that ends when a step says so.
func (r *run) execute(a *agent, itemID string, blocking bool) {
	before := r.w.Tails()
	_, no := "", ""
	if itemID != "" {
		_, no = r.m.own(a, itemID)
	}
	ans, err := r.w.Tasks().ExecCommand(r.asAgent(a), &taskv1.ExecCommandRequest{
		AgentId: a.id, RequestId: r.request(), Command: &taskv1.CommandSpec{Cmd: "x"}, YieldTime: durationpb.New(0),
		WorkItemId: itemID, Blocking: blocking,
	})
	want := only(no)
	if no == "" && itemID != "" && r.m.items[itemID].done {
		want = []string{"", "WORK_ITEM_COMPLETED"} // the SPEC leaves a command for a completed item open
	}
	if !r.answered(before, err, want...) {
		return
	}
	t := &task{id: ans.GetTask().GetTaskId(), owner: a, item: itemID, blocking: blocking, until: r.m.now.Add(taskTerm)}
	if itemID == "" {
		t.item = ans.GetTask().GetWorkItemId()
	}
	r.fine(r.w.worker.leased(t.id))
	r.m.tasks[t.id], r.tasks = t, append(r.tasks, t)
}
