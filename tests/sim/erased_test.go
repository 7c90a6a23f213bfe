package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/s2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// goneAgent works for a while and is deleted, and what it had is erased. Its texts have goneWord.
const (
	goneAgent = "agent-gone"
	goneWord  = "forget this"
)

// eraseAfter is how long after its deletion an agent is erased; 0 in a world in which nothing can be.
func (w *world) eraseAfter() time.Duration {
	if w.segment > 0 && w.snapshot > 0 && w.archived {
		return 40 * time.Second
	}
	return 0
}

// liveAndGo creates goneAgent, lets it have something of everything, and deletes it.
func (c *client) liveAndGo() {
	ctx := planetest.As(c.w.ctx, rpc.RoleOperator)
	item := ""
	call := func(what string, call func(ctx context.Context, id string) error) {
		id := c.request()
		_ = c.until(ctx, what, func(ctx context.Context) error { return call(ctx, id) })
	}
	call("SpawnAgent", func(ctx context.Context, id string) error {
		return must.Err(c.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: goneAgent, RequestId: id, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		}))
	})
	for range callsOfClient {
		if c.w.ctx.Err() != nil || c.k.check() != nil {
			return
		}
		text := fmt.Sprint(goneWord, " ", c.n)
		switch k := c.rnd.IntN(6); {
		case k < 2 || item == "":
			call("CreateWorkItem", func(ctx context.Context, id string) error {
				resp, err := c.work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
					AgentId: goneAgent, RequestId: id,
					Objective: text, PlanStatus: workv1.PlanStatus_PLAN_STATUS_READY,
				})
				item = resp.GetWorkItem().GetWorkItemId()
				return err
			})
		case k < 3:
			call("WaitFor", func(ctx context.Context, id string) error {
				return must.Err(c.waiting.WaitFor(ctx, &waitingv1.WaitForRequest{
					AgentId: goneAgent, RequestId: id,
					WorkItemId: item, Reason: text, Wake: waitingv1.Wake_WAKE_EXTERNAL,
				}))
			})
		case k < 4:
			call("CreateTimer", func(ctx context.Context, id string) error {
				return must.Err(c.waiting.CreateTimer(ctx, &waitingv1.CreateTimerRequest{
					AgentId: goneAgent, RequestId: id, Description: text, After: durationpb.New(20 * time.Second),
				}))
			})
		default:
			call("EnqueueMessage", func(ctx context.Context, id string) error {
				return must.Err(c.agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
					AgentId: goneAgent, RequestId: id, Text: text, Priority: agentv1.Priority_PRIORITY_NORMAL,
				}))
			})
		}
	}
	call("DeleteAgent", func(ctx context.Context, id string) error {
		_, err := c.agents.DeleteAgent(ctx, &agentv1.DeleteAgentRequest{
			AgentId: goneAgent, RequestId: id, Reason: goneWord,
		})
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		c.k.gone = c.k.gone || err == nil
		return err
	})
}

// erased checks that nothing of goneAgent is left in a quiet system, and that its name is not used again.
func (r *run) erased() error {
	r.k.mu.Lock()
	gone := r.k.gone
	r.k.mu.Unlock()
	if !gone {
		return nil
	}
	for _, plane := range r.w.planes {
		if err := r.w.forgotten(plane); err != nil {
			return violated{"erased", err}
		}
	}
	return r.ask(func(c *client) error {
		ctx := planetest.As(c.w.ctx, rpc.RoleOperator)
		_, err := c.agents.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: goneAgent})
		if fault.From(err).Code() != codes.NotFound {
			return fmt.Errorf("%s was erased, and reading it is answered with: %w", goneAgent, err)
		}
		_, err = c.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: goneAgent, RequestId: "again", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		})
		if fault.From(err).Code() != codes.AlreadyExists {
			return fmt.Errorf("%s was erased, and creating it again is answered with: %w", goneAgent, err)
		}
		return nil
	})
}

// forgotten checks that no text of goneAgent is in what a plane has stored.
func (w *world) forgotten(plane string) error {
	found := func(where string, b []byte) error {
		for _, word := range []string{goneWord, goneAgent} {
			if i := bytes.Index(b, []byte(word)); i >= 0 {
				return fmt.Errorf("%s of %s has %q: …%q…", where, plane, word, b[max(0, i-200):min(len(b), i+100)])
			}
		}
		return nil
	}
	ctx := context.Background()
	var err error
	for i, f := range w.frames(plane) {
		err = errors.Join(err, found(fmt.Sprintf("frame %d", i), f.Body))
	}
	live, segmentsErr := w.logs[plane].Segments(ctx)
	if segmentsErr != nil || len(live) == 0 {
		return errors.Join(err, segmentsErr)
	}
	scanErr := w.logs[plane].Scan(ctx, live[0].First, func(seq uint64, f framelog.Frame) error {
		return found(fmt.Sprintf("message %d", seq), f.Body)
	})
	numbers, numbersErr := w.stores[plane].Numbers(ctx)
	for _, n := range numbers {
		b, getErr := w.stores[plane].Get(ctx, n)
		if plain, decodeErr := s2.Decode(nil, b); decodeErr == nil {
			b = plain
		}
		err = errors.Join(err, getErr, found(fmt.Sprintf("object %d of the snapshots", n), b))
	}
	return errors.Join(err, scanErr, numbersErr)
}
