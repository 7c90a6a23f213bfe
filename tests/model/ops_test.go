package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/rpc"
)

var ops map[string]op

func init() {
	ops = map[string]op{
		"create":   {9, func(r *run, n [6]int) { a := r.whom(n); r.ask(r.someone(a, n[5]), r.createCall(a, n)) }},
		"pick":     {8, func(r *run, n [6]int) { a := r.whom(n); r.ask(r.asAgent(a), r.pickCall(a, n)) }},
		"update":   {12, func(r *run, n [6]int) { a := r.whom(n); r.ask(r.someone(a, n[5]), r.updateCall(a, n)) }},
		"complete": {5, func(r *run, n [6]int) { a := r.whom(n); r.ask(r.someone(a, n[5]), r.completeCall(a, n)) }},
		"waitFor":  {9, func(r *run, n [6]int) { a := r.whom(n); r.ask(r.asAgent(a), r.waitForCall(a, n)) }},
		"intend":   {5, func(r *run, n [6]int) { a := r.whom(n); r.ask(r.asAgent(a), r.createWaitCall(a, n)) }},
		"giveUp":   {4, func(r *run, n [6]int) { a := r.whom(n); r.ask(r.someone(a, n[5]), r.cancelWaitCall(a, n)) }},
		"trigger":  {4, (*run).createTrigger},
		"deliver":  {12, (*run).deliver},
		"rotate":   {1, (*run).rotate},
		"revoke":   {1, (*run).revoke},
		"timer":    {2, (*run).createTimer},
		"untimer":  {1, (*run).cancelTimer},
		"message":  {4, (*run).enqueue},
		"exec":     {4, (*run).exec},
		"end":      {5, (*run).endCommand},
		"acquire":  {14, (*run).acquire},
		"round":    {16, (*run).round},
		"finish":   {12, (*run).finishTurn},
		"late":     {2, (*run).late},
		"pause":    {1, (*run).pause},
		"resume":   {8, (*run).resume},
		"abort":    {1, (*run).abort},
		"drain":    {10, (*run).drain},
		"advance":  {9, func(r *run, n [6]int) { r.advance(time.Duration(n[1]%400) * time.Millisecond << (n[2] % 9)) }},
		"repeat":   {4, (*run).repeat},
		"restart":  {1, (*run).restart},
		"hold":     {3, (*run).hold},
		"release":  {4, (*run).release},
		"silence":  {1, (*run).silence},
	}
}

func (r *run) whom(n [6]int) *agent {
	r.touched = r.m.agents[n[0]%len(r.m.agents)]
	return r.touched
}

// ask makes a call by itself, outside of rounds.
func (r *run) ask(ctx context.Context, c *call) {
	before, id := r.w.Tails(), r.request()
	r.note("  %s %v", c.tool, c.args)
	answer, err := c.direct(ctx, id)
	if !r.answered(before, err, c.want()...) {
		return
	}
	r.happened[c.tool]++
	c.apply(plain(answer))
	if c.writes() {
		r.remember(asked{
			at: r.m.now, answer: answer, again: func() (proto.Message, error) { return c.direct(ctx, id) },
			other: func() error {
				if c.other == nil {
					return nil
				}
				return c.other(ctx, id)
			},
		})
	} else {
		r.must(r.w.Tails() == before, "%s had nothing to write and left a line", c.tool)
	}
}

func (r *run) remember(a asked) {
	r.asked = append(r.asked, a)
	if len(r.asked) > 20 {
		r.asked = r.asked[1:]
	}
}

// repeat asks again: with the same arguments, and with others (SPEC X2).
func (r *run) repeat(n [6]int) {
	if len(r.asked) == 0 {
		return
	}
	q := r.asked[n[1]%len(r.asked)]
	if r.m.now.Sub(q.at) > 23*time.Hour {
		return
	}
	if r.m.held["work>waiting"] {
		return // a wait of an item that is completed meanwhile, which one plane does not know
	}
	before := r.w.Tails()
	answer, err := q.again()
	r.note("  again %T: %v", q.answer, err)
	r.must(err == nil, "a repeated request is refused: %v", err)
	r.must(identity(answer) == identity(q.answer), "a repeated request answers %s, at first it was %s",
		identity(answer), identity(q.answer))
	if q.other != nil {
		if err := q.other(); err != nil {
			r.must(fault.From(err).Reason() == fault.RequestIDReused, "an id with other arguments: %v", err)
		}
	}
	r.must(r.w.Tails() == before, "a repeated request (%T) left a line", q.answer)
}

// identity returns what must not change when an answer is given again.
func identity(m proto.Message) string {
	s := plain(m)
	return fmt.Sprint(at(s, "work_item", "work_item_id"), at(s, "work_item", "revision"),
		at(s, "work_item", "objective"), at(s, "work_item", "blocked_by"),
		at(s, "wait", "wait_id"), at(s, "wait", "revision"), at(s, "trigger", "trigger_id"), at(s, "token"),
		at(s, "timer", "timer_id"), at(s, "message_id"), at(s, "outcome"), at(s, "delivery_id"))
}

func (r *run) createTrigger(n [6]int) {
	a := r.whom(n)
	t := &trigger{owner: a, contentful: n[2]%3 == 0, status: waitingv1.TriggerStatus_TRIGGER_STATUS_ACTIVE}
	req := &waitingv1.CreateExternalTriggerRequest{AgentId: a.id, RequestId: r.request()}
	if n[1]%3 != 0 {
		t.item = r.itemID(a, n[1]/3)
		req.WorkItemId = t.item
	}
	if t.contentful {
		req.DeliveryMode = waitingv1.DeliveryMode_DELIVERY_MODE_CONTENTFUL
	}
	if n[3]%4 == 0 {
		t.expires = r.m.now.Add(time.Duration(1+n[4]%120) * time.Second)
		req.ExpiresAt = timestamppb.New(t.expires)
	}
	before := r.w.Tails()
	send := func() (proto.Message, error) { return r.w.Waits().CreateExternalTrigger(r.asAgent(a), req) }
	answer, err := send()
	no := ""
	if t.item != "" {
		_, no = r.m.open(a, t.item)
	}
	if !r.answered(before, err, no) {
		return
	}
	s := plain(answer)
	t.id, t.token = at(s, "trigger", "trigger_id"), at(s, "token")
	r.m.trigs[t.id], r.trigs = t, append(r.trigs, t)
	r.remember(asked{at: r.m.now, answer: answer, again: send})
}

func (r *run) deliver(n [6]int) {
	if len(r.trigs) == 0 {
		return
	}
	t := r.trigs[max(0, len(r.trigs)-1-n[1]%5)]
	r.touched = t.owner
	token, want := t.token, ""
	switch {
	case n[2]%25 == 0:
		token, want = "nobody-knows", "NOT_FOUND"
	case n[2]%25 == 1 && t.old != "":
		token, want = t.old, "TRIGGER_REVOKED"
		if t.status == waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED {
			want = "TRIGGER_EXPIRED"
		}
	case t.status == waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED:
		want = "TRIGGER_REVOKED"
	case t.status == waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED:
		want = "TRIGGER_EXPIRED"
	}
	req := &waitingv1.DeliverTriggerRequest{Token: token, Body: []byte("news"), ContentType: "text/plain"}
	if n[3]%2 == 0 {
		req.RequestId = r.request()
	}
	before := r.w.Tails()
	send := func() (proto.Message, error) { return r.w.Waits().DeliverTrigger(r.as(rpc.RoleService), req) }
	answer, err := send()
	wants := only(want)
	if n[2]%25 == 1 && want != "" { // the old address of a dead trigger may tell either
		wants = []string{"TRIGGER_REVOKED", "TRIGGER_EXPIRED"}
	}
	if !r.answered(before, err, wants...) {
		return
	}
	all := r.m.reached(t)
	alive := t.item == "" || !r.m.items[t.item].heardDone
	if len(all) == 0 && alive && !t.contentful {
		all = []*wait{r.interest(t)} // ADR 0012: nobody was waiting, so an interest is made
	}
	outcome, contentful := r.m.deliver(t, all, alive)
	r.happened[outcome.String()]++
	got, _ := answer.(*waitingv1.DeliverTriggerResponse)
	r.must(got.GetOutcome() == outcome, "a delivery is %v, the model says %v", got.GetOutcome(), outcome)
	if contentful {
		a, id, reached := t.owner, got.GetDeliveryId(), slices.Clone(all)
		r.m.say("waiting>agent", func() {
			r.m.hear(a, &message{
				kind: agentv1.MessageKind_MESSAGE_KIND_CALLBACK_EVENT, cause: id, item: t.item,
				reached: reached,
			})
		})
	}
	if req.GetRequestId() != "" {
		r.remember(asked{at: r.m.now, answer: answer, again: send})
	}
}

// interest finds the intent that a delivery made for itself.
func (r *run) interest(t *trigger) *wait {
	resp, err := r.w.Waiting.ListWaits(r.asAgent(t.owner), &waitingv1.ListWaitsRequest{
		AgentId:  t.owner.id,
		PageSize: 500,
	})
	r.fine(err)
	for _, got := range resp.GetWaits() {
		if r.m.waits[got.GetWaitId()] == nil && got.GetResource() == t.id {
			w := &wait{
				id: got.GetWaitId(), item: t.item, resource: t.id, owner: t.owner, intent: true, auto: true,
				kind:       external,
				contentful: t.contentful, status: active, rev: 1,
			}
			r.m.waits[w.id], t.owner.waits = w, append(t.owner.waits, w)
			r.m.tell(w)
			return w
		}
	}
	r.must(false, "a delivery that nobody waits for made no interest")
	return nil
}

func (r *run) rotate(n [6]int) {
	if len(r.trigs) == 0 {
		return
	}
	t := r.trigs[max(0, len(r.trigs)-1-n[1]%5)]
	r.touched = t.owner
	want := ""
	switch t.status {
	case waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED:
		want = "TRIGGER_REVOKED"
	case waitingv1.TriggerStatus_TRIGGER_STATUS_EXPIRED:
		want = "TRIGGER_EXPIRED"
	}
	before := r.w.Tails()
	answer, err := r.w.Waits().RotateExternalTrigger(r.asAgent(t.owner), &waitingv1.RotateExternalTriggerRequest{
		AgentId: t.owner.id, RequestId: r.request(), TriggerId: t.id,
	})
	if r.answered(before, err, want) {
		r.must(answer.GetToken() != t.token, "a rotated trigger has its old secret")
		t.old, t.token = t.token, answer.GetToken()
	}
}

func (r *run) revoke(n [6]int) {
	if len(r.trigs) == 0 {
		return
	}
	t := r.trigs[max(0, len(r.trigs)-1-n[1]%5)]
	r.touched = t.owner
	before := r.w.Tails()
	_, err := r.w.Waits().CancelExternalTrigger(r.asAgent(t.owner), &waitingv1.CancelExternalTriggerRequest{
		AgentId: t.owner.id, RequestId: r.request(), TriggerId: t.id,
	})
	if r.answered(before, err, "") {
		r.m.endTrigger(t, waitingv1.TriggerStatus_TRIGGER_STATUS_REVOKED)
	}
}

func (r *run) createTimer(n [6]int) {
	a := r.whom(n)
	t := &timer{owner: a, status: waitingv1.TimerStatus_TIMER_STATUS_ACTIVE}
	req := &waitingv1.CreateTimerRequest{AgentId: a.id, RequestId: r.request(), Description: "tick"}
	want := ""
	if n[1]%2 == 0 {
		t.every = time.Duration(1+n[2]%40) * time.Second
		req.Every = durationpb.New(t.every)
		t.start = r.m.now.Add(t.every)
		if n[3]%2 == 0 {
			t.count = int64(1 + n[4]%4)
			req.Count = t.count
		}
	}
	if n[1]%2 == 1 || n[5]%2 == 0 {
		after := time.Duration(n[3]%60) * time.Second
		if n[3]%30 == 7 {
			want = "INVALID_ARGUMENT"
			req.At = timestamppb.New(r.m.now)
		}
		t.start = r.m.now.Add(after)
		req.After = durationpb.New(after)
	}
	t.next = t.start
	before := r.w.Tails()
	send := func() (proto.Message, error) { return r.w.Waits().CreateTimer(r.asAgent(a), req) }
	answer, err := send()
	if !r.answered(before, err, want) {
		return
	}
	t.id = at(plain(answer), "timer", "timer_id")
	r.m.timers[t.id], r.timers = t, append(r.timers, t)
	r.m.due()
	r.remember(asked{at: r.m.now, answer: answer, again: send})
}

func (r *run) cancelTimer(n [6]int) {
	if len(r.timers) == 0 {
		return
	}
	t := r.timers[max(0, len(r.timers)-1-n[1]%5)]
	r.touched = t.owner
	before := r.w.Tails()
	_, err := r.w.Waits().CancelTimer(r.asAgent(t.owner), &waitingv1.CancelTimerRequest{
		AgentId:   t.owner.id,
		RequestId: r.request(), TimerId: t.id,
	})
	if r.answered(before, err, "") && t.status == waitingv1.TimerStatus_TIMER_STATUS_ACTIVE {
		t.status = waitingv1.TimerStatus_TIMER_STATUS_CANCELLED
	}
}

func (r *run) enqueue(n [6]int) {
	a := r.whom(n)
	req := &agentv1.EnqueueMessageRequest{
		AgentId: a.id, RequestId: r.request(), Text: "hello",
		Priority: agentv1.Priority(n[1] % 5),
	}
	want := ""
	if n[2]%3 == 0 {
		req.WorkItemId = r.itemID(a, n[3])
		_, want = r.m.own(a, req.GetWorkItemId())
	}
	if n[2]%17 == 0 {
		req.Text, want = "", "INVALID_ARGUMENT"
	}
	before := r.w.Tails()
	send := func() (proto.Message, error) { return r.w.Agents().EnqueueMessage(r.as(rpc.RoleOperator), req) }
	answer, err := send()
	wants := only(want)
	if req.GetText() == "" {
		wants = append(wants, "NOT_FOUND", "PERMISSION_DENIED")
	}
	if !r.answered(before, err, wants...) {
		return
	}
	id := at(plain(answer), "message_id")
	r.m.hear(a, &message{
		id: id, cause: id, kind: agentv1.MessageKind_MESSAGE_KIND_OPERATOR_PROMPT,
		item: req.GetWorkItemId(), priority: req.GetPriority(),
	})
	r.m.say("agent>waiting", func() { r.m.operatorSaid(a, id, req.GetWorkItemId()) })
	r.remember(asked{at: r.m.now, answer: answer, again: send})
}

func (r *run) exec(n [6]int) {
	a := r.whom(n)
	itemID := ""
	if n[1]%3 != 0 {
		itemID = r.itemID(a, n[1]/3)
	}
	r.execute(a, itemID, n[2]%3 == 0)
}

// endCommand ends a command: by itself, with either exit code, or stopped.
func (r *run) endCommand(n [6]int) {
	var live []*task
	for _, t := range r.tasks {
		if !t.over {
			live = append(live, t)
		}
	}
	if len(live) == 0 {
		return
	}
	t := live[n[1]%len(live)]
	r.touched = t.owner
	reason := taskv1.TaskEndReason_TASK_END_REASON_EXITED
	if n[2]%4 == 0 {
		_, err := r.w.Tasks().StopTask(r.as(rpc.RoleOperator), &taskv1.StopTaskRequest{
			AgentId:   t.owner.id,
			RequestId: r.request(), TaskId: t.id,
		})
		r.fine(err)
		_, err = r.w.worker.await(func(m *taskv1.ConnectResponse) bool { return m.GetStop().GetTaskId() == t.id })
		r.fine(err)
		reason = taskv1.TaskEndReason_TASK_END_REASON_STOPPED
	}
	r.fine(r.w.worker.end(t.id, reason, int32(n[3]%2)))
	r.m.endTask(t)
}

// advance moves the clock, and lets happen what it reaches.
func (r *run) advance(d time.Duration) {
	if d > 0 {
		r.m.now = r.m.now.Add(d)
		for _, a := range r.m.agents {
			for _, at := range a.alarms {
				// The scheduler's own alarm rings before the planes have told each other
				// what else is due, also for what is over since: it may decide on what
				// it finds.
				if at.After(r.m.now.Add(-d)) && !at.After(r.m.now) {
					r.rung[a] = true
				}
			}
		}
		// All of it is due at one moment: a process that slept finds it so.
		lapsed := r.m.expire()
		r.m.due()
		r.w.Clock.Advance(d)
		// A turn that is lost is lost before its agent hears what else fell due.
		r.fine(errors.Join(r.w.Agent.Quiesce(r.w.Context()), r.w.Waiting.Quiesce(r.w.Context())))
		r.w.Scheduler.Quiesce()
		r.happened["a command lost"] += len(lapsed)
		for _, t := range lapsed {
			delete(r.w.worker.leases, t.id)
			_, err := r.w.Tasks().GetTaskOutput(r.asAgent(t.owner), &taskv1.GetTaskOutputRequest{
				AgentId: t.owner.id,
				TaskId:  t.id, Block: true, Timeout: durationpb.New(50 * time.Second),
			})
			r.fine(err)
		}
	}
}

// repeatable restarts; a follower that is held back stays so.
func (r *run) restart(n [6]int) {
	names := [][]string{
		{"agent"},
		{"work"},
		{"waiting"},
		{"task"},
		{"scheduler"},
		{"scheduler", "task", "waiting", "work", "agent"},
	}[n[1]%6]
	r.settle()
	before := r.picture()
	at := r.w.Tails()
	for _, name := range names {
		r.fine(r.w.Stop(name))
	}
	slices.Reverse(names)
	for _, name := range names {
		r.fine(r.w.Start(name))
		switch name {
		case "agent": // every live lease gets one full term (SPEC X12)
			for _, a := range r.m.agents {
				if a.turn != nil {
					a.turn.until = r.m.now.Add(turnTerm)
				}
			}
		case "waiting":
			for _, w := range r.m.waits {
				if w.tell = (time.Time{}); w.told < w.count {
					w.tell = r.m.now.Add(tellTerm)
				}
			}
		case "task":
			for _, t := range r.m.tasks {
				if !t.over {
					t.until = r.m.now.Add(taskTerm)
				}
			}
		}
	}
	r.settle()
	if slices.Equal(names, []string{"scheduler"}) && !r.anyHeld() {
		// The first sweep looks at everybody and finds nothing new (SPEC D1).
		r.must(r.w.Tails() == at, "a scheduler that was started anew had something to say")
	}
	if late := r.m.held[heard[0]] || r.m.held[heard[1]]; late && slices.Contains(names, "scheduler") {
		return // its first sweep sees what it had not heard of
	}
	after := r.picture()
	for i := range before {
		r.must(before[i] == after[i], "after a restart of %v:\n%s\nbefore it:\n%s", names, after[i], before[i])
	}
}

func (r *run) anyHeld() bool {
	for _, held := range r.m.held {
		if held {
			return true
		}
	}
	return false
}

// hold keeps a follower from hearing, for some steps.
func (r *run) hold(n [6]int) {
	if all := append(slices.Clone(edges), heard...); n[2]%3 == 0 || !r.anyHeld() {
		r.m.held[all[n[1]%len(all)]] = true
	}
}

// release lets all who were held back hear, one after another in some order: what
// they make of it may hang on that.
func (r *run) release(n [6]int) {
	only := func(edge string) {
		for _, e := range edges {
			r.m.held[e] = e != edge
			r.w.Taps.Hold(e, e != edge)
		}
		r.m.flush()
		r.fine(r.w.Quiet())
	}
	pending := func(e string) bool { return len(r.m.said[e]) > 0 }
	for slices.ContainsFunc(edges, pending) {
		for k := range edges {
			if e := edges[(k+n[1])%len(edges)]; pending(e) {
				only(e)
			}
		}
	}
	clear(r.m.held)
	r.touched = nil
}

// silence checks that a quiet system writes nothing: an hour passes in which
// nothing falls due.
func (r *run) silence(n [6]int) {
	r.release(n)
	r.settle()
	horizon := r.m.now.Add(61 * time.Minute)
	soon := func(t time.Time) bool { return !t.IsZero() && !t.After(horizon) }
	for _, a := range r.m.agents {
		if a.turn != nil {
			return
		}
		for _, i := range a.items {
			if !i.done && soon(i.recheck()) {
				return
			}
		}
		for _, w := range a.waits {
			if w.status == active && (soon(w.due) || w.told < w.count || soon(w.recheck) && !w.rechecked) {
				return
			}
		}
	}
	for _, t := range r.m.trigs {
		if t.status == waitingv1.TriggerStatus_TRIGGER_STATUS_ACTIVE && soon(t.expires) {
			return
		}
	}
	for _, t := range r.m.timers {
		if t.status == waitingv1.TimerStatus_TIMER_STATUS_ACTIVE && soon(t.next) {
			return
		}
	}
	for _, t := range r.m.tasks {
		if !t.over {
			return
		}
	}
	r.happened["an hour of silence"]++
	before := r.w.Tails()
	r.m.now = r.m.now.Add(time.Hour)
	r.w.Clock.Advance(time.Hour)
	r.fine(r.w.Quiet())
	r.must(r.w.Tails() == before, "a quiet system wrote something within an hour")
}
