// Package load drives a server with random mutations and keeps the books: what
// was answered, what was refused, what is not known. Whatever the server does
// in between, the books must agree with what it says afterwards.
package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// Dial connects and goes on connecting, in plain text where opts say nothing else.
func Dial(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return DialTarget("passthrough:///"+addr,
		append([]grpc.DialOption{grpc.WithPerRPCCredentials(client.LocalCredential(addr))}, opts...)...)
}

// DialTarget is Dial for a target as gRPC writes it.
func DialTarget(target string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: time.Second,
			Backoff: backoff.Config{
				BaseDelay: 10 * time.Millisecond, Multiplier: 1.5,
				MaxDelay: 100 * time.Millisecond,
			},
		}),
	}, opts...)...)
}

// Again is AgainEach with calls that may take ten seconds.
func Again[R any](ctx context.Context, call func(context.Context) (R, error)) (R, error) {
	return AgainEach(ctx, 10*time.Second, call)
}

// AgainEach repeats a call with the same arguments until it is answered for good or ctx ends.
// An answer is anything but "not reachable", "out of time" and "cancelled". One call may
// take so long.
func AgainEach[R any](ctx context.Context, each time.Duration, call func(context.Context) (R, error)) (R, error) {
	for {
		one, cancel := context.WithTimeout(ctx, each)
		r, err := call(one)
		cancel()
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		default:
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// item is what the books say of a work item.
type item struct {
	id        string
	revision  int64
	objective string
	completed bool
	// loose is how many updates without a request id have an unknown outcome: the
	// revision may be higher by as many, and by no more.
	loose int64
}

// Driver is the only writer of one agent's items, so it knows what they must be.
type Driver struct {
	AgentID string
	// OwnIDs: every mutation carries a request id and is repeated under it
	// until it is answered. Without: a mutation is asked once, and the server's
	// word on what became of it is taken.
	OwnIDs bool

	agents agentv1.AgentServiceClient
	work   workv1.WorkServiceClient
	rng    *rand.Rand
	n      int
	items  []*item
	// messages are the ids of those that were answered; loose counts those whose outcome is
	// unknown.
	messages []string
	loose    int
	answered atomic.Int64
	// Pause is how long to wait after each mutation.
	Pause time.Duration
	// Large makes each objective as long as it may be, so that journals fill their segments.
	Large bool
	// answers are some of the requests with an id, with their first answers.
	answers []answer
	// Unknown counts mutations of unknown outcome, for the report.
	Unknown int
	// spare are items whose creation has an unknown outcome.
	spare int
}

// NewDriver prepares an agent's driver.
func NewDriver(conn grpc.ClientConnInterface, agentID string, ownIDs bool, seed uint64) *Driver {
	return &Driver{
		AgentID: agentID, OwnIDs: ownIDs, agents: agentv1.NewAgentServiceClient(conn),
		work: workv1.NewWorkServiceClient(conn),
		rng:  rand.New(rand.NewPCG(seed, 1)),
	}
}

// Answered returns how many mutations were answered.
func (d *Driver) Answered() int { return int(d.answered.Load()) }

// Spawn makes the agent.
func (d *Driver) Spawn(ctx context.Context) error {
	_, err := Again(ctx, func(ctx context.Context) (*agentv1.SpawnAgentResponse, error) {
		return d.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: d.AgentID, RequestId: "spawn-" + d.AgentID, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		})
	})
	return err
}

// Run mutates until stop is closed. What it was told is in the books then.
func (d *Driver) Run(ctx context.Context, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := d.step(ctx); err != nil {
			return fmt.Errorf("agent %s, mutation %d: %w", d.AgentID, d.n, err)
		}
		if d.Pause > 0 {
			select {
			case <-stop:
			case <-time.After(d.Pause):
			}
		}
	}
}

func (d *Driver) step(ctx context.Context) error {
	d.n++
	switch r := d.rng.IntN(10); {
	case len(d.items) == 0 || r < 2:
		return d.create(ctx)
	case r < 3:
		return d.message(ctx)
	case r < 4:
		return d.complete(ctx)
	}
	return d.update(ctx)
}

func (d *Driver) requestID() string {
	if !d.OwnIDs {
		return ""
	}
	return fmt.Sprintf("%s-%d", d.AgentID, d.n)
}

// outcome of a mutation that was asked once.
type outcome int

const (
	answered outcome = iota
	nothing          // the server promises that nothing happened
	unknown          // it may have happened, once
)

// answer is a request with an id, and what it was answered first.
type answer struct {
	call  func(context.Context) (proto.Message, error)
	first proto.Message
}

// Of the requests with an id, one in keptEach is kept to be repeated, and the newest keptMost of those.
const (
	keptEach = 8
	keptMost = 100
)

// keep notes a request to repeat.
func (d *Driver) keep(first proto.Message, call func(context.Context) (proto.Message, error)) {
	if d.n%keptEach == 0 {
		withoutPlan(first)
		d.answers = append(d.answers, answer{call, first})
		d.answers = d.answers[max(0, len(d.answers)-keptMost):]
	}
}

// withoutPlan removes from an answer what was read from a file: a later answer has what the file has then.
func withoutPlan(reply proto.Message) {
	if r, ok := reply.(interface{ GetWorkItem() *workv1.WorkItem }); ok && r.GetWorkItem() != nil {
		r.GetWorkItem().PlanArtifact = nil
	}
}

// Repeat sends requests that were answered once more, at most n of the newest ones that are kept: each must have its
// first answer, and Check and Audit find nothing that was done twice.
func (d *Driver) Repeat(ctx context.Context, n int) error {
	for _, a := range d.answers[max(0, len(d.answers)-n):] {
		again, err := Again(ctx, a.call)
		if err != nil {
			return fmt.Errorf("agent %s: a repeated request: %w", d.AgentID, err)
		}
		if withoutPlan(again); !proto.Equal(a.first, again) {
			return fmt.Errorf("agent %s: a repeated request is answered with %v, and was answered with %v", d.AgentID,
				again, a.first)
		}
	}
	return nil
}

// ask runs one mutation: repeated under its id, or once.
func ask[R proto.Message](ctx context.Context, d *Driver, call func(context.Context) (R, error)) (R, outcome, error) {
	if d.OwnIDs {
		r, err := Again(ctx, call)
		if err == nil {
			d.keep(r, func(ctx context.Context) (proto.Message, error) { return call(ctx) })
		}
		return r, answered, err
	}
	one, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := call(one)
	switch status.Code(err) {
	case codes.OK:
		return r, answered, nil
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
	default:
		return r, answered, err
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetReason() == "STORAGE" &&
			info.GetMetadata()["outcome"] == "none" {
			return r, nothing, nil
		}
	}
	d.Unknown++
	// A server that cannot be reached refuses at once, and callers without a pause would take the
	// processor from the one that starts.
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
	return r, unknown, nil
}

func (d *Driver) objective(what string) string {
	text := fmt.Sprintf("%s by mutation %d", what, d.n)
	if d.Large {
		text += strings.Repeat("𝕏", 1950)
	}
	return text
}

func (d *Driver) create(ctx context.Context) error {
	objective := d.objective("created")
	req := &workv1.CreateWorkItemRequest{AgentId: d.AgentID, RequestId: d.requestID(), Objective: objective}
	r, f, err := ask(ctx, d, func(ctx context.Context) (*workv1.CreateWorkItemResponse, error) {
		return d.work.CreateWorkItem(ctx, req)
	})
	if err != nil {
		return err
	}
	if f != answered {
		if f == unknown {
			d.spare++
		}
		return nil
	}
	d.answered.Add(1)
	if got := r.GetWorkItem().GetRevision(); got != 1 {
		return fmt.Errorf("a new item has revision %d", got)
	}
	d.items = append(d.items, &item{id: r.GetWorkItem().GetWorkItemId(), revision: 1, objective: objective})
	return nil
}

// pick returns a random open item, or nil if a few tries found none. There must be items.
func (d *Driver) pick() *item {
	for range 8 {
		if it := d.items[d.rng.IntN(len(d.items))]; !it.completed {
			return it
		}
	}
	return nil
}

func (d *Driver) update(ctx context.Context) error {
	it := d.pick()
	if it == nil {
		return d.create(ctx)
	}
	objective := d.objective("updated")
	req := &workv1.UpdateWorkItemRequest{
		AgentId: d.AgentID, RequestId: d.requestID(), WorkItemId: it.id,
		Objective: &objective,
	}
	r, f, err := ask(ctx, d, func(ctx context.Context) (*workv1.UpdateWorkItemResponse, error) {
		return d.work.UpdateWorkItem(ctx, req)
	})
	if err != nil {
		return err
	}
	return d.written(it, r.GetWorkItem(), f, objective)
}

// written checks the answer of a write: one revision on, or as many more as
// there are writes of unknown outcome.
func (d *Driver) written(it *item, got *workv1.WorkItem, f outcome, objective string) error {
	switch f {
	case nothing:
		return nil
	case unknown:
		it.loose++
		it.objective = "" // the old one or the new one
		return nil
	case answered:
	}
	d.answered.Add(1)
	if rev := got.GetRevision(); rev < it.revision+1 || rev > it.revision+1+it.loose {
		return fmt.Errorf("item %s: revision %d after %d with %d writes of unknown outcome", it.id, rev, it.revision,
			it.loose)
	}
	it.revision, it.loose, it.objective = got.GetRevision(), 0, objective
	return nil
}

func (d *Driver) complete(ctx context.Context) error {
	it := d.pick()
	if it == nil || it.loose > 0 {
		return nil
	}
	if !d.OwnIDs {
		// Completing has no second chance to be told apart; leave it to those
		// who can repeat it.
		return d.update(ctx)
	}
	req := &workv1.CompleteWorkItemRequest{AgentId: d.AgentID, RequestId: d.requestID(), WorkItemId: it.id}
	r, f, err := ask(ctx, d, func(ctx context.Context) (*workv1.CompleteWorkItemResponse, error) {
		return d.work.CompleteWorkItem(ctx, req)
	})
	if err != nil {
		return err
	}
	if r.GetAlreadyCompleted() {
		return fmt.Errorf("item %s was completed twice", it.id)
	}
	it.completed = true
	return d.written(it, r.GetWorkItem(), f, it.objective)
}

func (d *Driver) message(ctx context.Context) error {
	req := &agentv1.EnqueueMessageRequest{
		AgentId: d.AgentID, RequestId: d.requestID(),
		Text: fmt.Sprintf("message %d", d.n),
	}
	r, f, err := ask(ctx, d, func(ctx context.Context) (*agentv1.EnqueueMessageResponse, error) {
		return d.agents.EnqueueMessage(ctx, req)
	})
	if err != nil {
		return err
	}
	switch f {
	case answered:
		d.answered.Add(1)
		d.messages = append(d.messages, r.GetMessageId())
	case unknown:
		d.loose++
	case nothing:
	}
	return nil
}

// Check compares the books with what the server says of the newest items, at most n.
func (d *Driver) Check(ctx context.Context, n int) error { return d.check(ctx, d.work, n) }

// CheckAt is Check at another address.
func (d *Driver) CheckAt(ctx context.Context, conn grpc.ClientConnInterface, n int) error {
	return d.check(ctx, workv1.NewWorkServiceClient(conn), n)
}

// Create makes one item.
func (d *Driver) Create(ctx context.Context) error {
	d.n++
	return d.create(ctx)
}

func (d *Driver) check(ctx context.Context, work workv1.WorkServiceClient, n int) error {
	for i := len(d.items) - 1; i >= 0 && n > 0; i, n = i-1, n-1 {
		it := d.items[i]
		r, err := Again(ctx, func(ctx context.Context) (*workv1.GetWorkItemResponse, error) {
			return work.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: d.AgentID, WorkItemId: it.id})
		})
		if err != nil {
			return fmt.Errorf("agent %s lost item %s: %w", d.AgentID, it.id, err)
		}
		got := r.GetWorkItem()
		done := got.GetState() == workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED
		if got.GetRevision() < it.revision || got.GetRevision() > it.revision+it.loose || done != it.completed ||
			it.objective != "" && got.GetObjective() != it.objective {
			return fmt.Errorf("item %s is at revision %d (%q, completed %t); the books say %d + up to %d (%q, "+
				"completed %t)",
				it.id, got.GetRevision(), got.GetObjective(), done, it.revision, it.loose, it.objective, it.completed)
		}
	}
	return nil
}
