package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/utf8cut"
)

// finishTerm is how long a runner that stops tries to hand its turn back.
const finishTerm = 10 * time.Second

// Turn is one conversational execution that this runner holds. Its methods are
// for one goroutine at a time: a turn is a conversation.
type Turn struct {
	// Record is the turn as it was leased.
	Record *agentv1.Turn
	// Message is what the turn is about.
	Message *agentv1.Message
	// Interjections are operators' messages that came with the turn.
	Interjections []*agentv1.Message
	// Context is what the model needs to know.
	Context *agentv1.ContextProjection
	// Tools are the names of the tools that Round executes.
	Tools []string
	// Agent is whose turn it is.
	Agent *agentv1.Agent
	// Namespace of the agent.
	Namespace string
	// Token acts as the agent in this run, and is worth nothing afterwards: As.
	Token string

	client *Client
	cancel context.CancelCauseFunc // of the handler's context
	index  int32
	ended  atomic.Bool
	reason string
}

// Reply is what a model said in one round.
type Reply struct {
	// Text, at most 256 KiB. Beside a CompleteWorkItem it becomes the report.
	Text string
	// Calls of tools that the server executes, at most 64.
	Calls []*agentv1.ToolCall
	// Local are the results of tools that the runner executed itself.
	Local []*agentv1.ToolResult
	// Usage is what the round cost.
	Usage *agentv1.TokenUsage
}

// Call makes a tool call. arguments are JSON values, as the tool's schema says.
func Call(callID, name string, arguments map[string]any) (*agentv1.ToolCall, error) {
	args, err := structpb.NewStruct(arguments)
	if err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", name, err)
	}
	return &agentv1.ToolCall{CallId: callID, Name: name, Arguments: args}, nil
}

// CommandOf says how the command of an ExecCommand stands, such as "tsk_01h…
// failed: exit code 1", and whether it failed; of other results nothing. The call
// succeeds whenever the command was run: what came of it is in its task.
func CommandOf(r *agentv1.ToolResult) (how string, failed bool) {
	if r.GetToolName() != "ExecCommand" {
		return "", false
	}
	task := r.GetResult().GetFields()["task"].GetStructValue().GetFields()
	state := task["state"].GetStringValue()
	if state == "" {
		return "", false
	}
	how = task["task_id"].GetStringValue() + " " + state
	if end := task["end_message"].GetStringValue(); end != "" {
		how += ": " + end
	}
	return how, state == "failed"
}

// Round submits what the model said and gives the results of its calls, one for
// each and in order, with operators' interjections and the server's notices
// (SPEC A6). A failed call is a result, not an error. While the server is away
// it is submitted again; the calls are executed once. Where it ended the turn
// (TurnEnded), no other Round may follow and the handler should return nil.
func (t *Turn) Round(ctx context.Context, r Reply) (*agentv1.SubmitRoundResponse, error) {
	if t.ended.Load() {
		return nil, fault.TurnEnded.Newf("turn %s ended with %s; there are no further rounds", t.Record.GetTurnId(), t.reason)
	}
	req := &agentv1.SubmitRoundRequest{
		AgentId: t.Record.GetAgentId(), TurnId: t.Record.GetTurnId(), RunId: t.Record.GetRunId(), RoundIndex: t.index,
		Text: r.Text, ToolCalls: r.Calls, LocalToolResults: r.Local, Usage: r.Usage,
	}
	resp, err := Again(ctx, func(ctx context.Context) (*agentv1.SubmitRoundResponse, error) {
		return t.client.Agents.SubmitRound(t.Traced(t.as(ctx)), req)
	})
	if err != nil {
		if over(err) {
			if cause := t.lost(context.WithoutCancel(ctx), nil); cause != nil {
				err = cause
			}
		}
		return nil, err
	}
	t.index++
	if resp.GetTurnEnded() {
		t.reason = endReason(resp.GetEndReason())
		t.ended.Store(true)
	}
	return resp, nil
}

// as lets calls for a turn of another namespace act by the turn's own token:
// the runner's credential names its own namespace.
func (t *Turn) as(ctx context.Context) context.Context {
	if t.Record.GetAcquiredFrom() == "" {
		return ctx
	}
	return As(ctx, t.Token)
}

// Traced makes calls under ctx part of the turn's trace (W3C Trace Context), if it
// has one and ctx does not say otherwise. Rounds are by themselves.
func (t *Turn) Traced(ctx context.Context) context.Context {
	if t.Record.GetTraceparent() == "" {
		return ctx
	}
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get("traceparent")) > 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "traceparent", t.Record.GetTraceparent())
}

// Rounds is how many rounds the turn has so far.
func (t *Turn) Rounds() int { return int(t.index) }

// Ended says whether a round ended the turn.
func (t *Turn) Ended() bool { return t.ended.Load() }

// over says whether an error is the server's word that the run holds nothing.
func over(err error) bool {
	return errors.Is(err, fault.RunStale) || errors.Is(err, fault.TurnEnded)
}

// lost is how a turn that the server calls ended did end. It cancels the
// handler's context with that cause. Where the runner's own round or finish
// ended it, nothing was lost and it gives nil.
func (t *Turn) lost(ctx context.Context, known *agentv1.Turn) error {
	if known == nil {
		term, cancel := context.WithTimeout(ctx, finishTerm)
		defer cancel()
		resp, err := Again(term, func(ctx context.Context) (*agentv1.GetTurnResponse, error) {
			return t.client.Agents.GetTurn(t.as(ctx), &agentv1.GetTurnRequest{AgentId: t.Record.GetAgentId(), TurnId: t.Record.GetTurnId()})
		})
		if err == nil {
			known = resp.GetTurn()
		}
	}
	if known.GetState() == agentv1.TurnState_TURN_STATE_COMPLETED {
		return nil
	}
	cause := &EndedError{Turn: known}
	t.cancel(cause)
	return cause
}

// finish ends the turn by what its handler returned, unless it has ended.
func (t *Turn) finish(ctx context.Context, result error) error {
	var gone *EndedError
	if t.ended.Load() || errors.As(context.Cause(ctx), &gone) {
		return nil
	}
	req := &agentv1.FinishTurnRequest{
		AgentId: t.Record.GetAgentId(), TurnId: t.Record.GetTurnId(), RunId: t.Record.GetRunId(), Outcome: Outcome(result),
	}
	if result != nil {
		req.Message = cut(result.Error(), fault.MaxFreeTextBytes)
	}
	// What was done must be said also when the runner stops meanwhile, but not
	// to a server that does not come back.
	ending, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(finishTerm, func() { cancel(context.DeadlineExceeded) })
		context.AfterFunc(ending, func() { timer.Stop() })
	})()
	_, err := Again(ending, func(ctx context.Context) (*agentv1.FinishTurnResponse, error) {
		return t.client.Agents.FinishTurn(t.Traced(t.as(ctx)), req)
	})
	if err != nil && !over(err) {
		return fmt.Errorf("finish turn %s: %w", req.GetTurnId(), err)
	}
	return nil
}

// cut shortens text to at most limit bytes, at the end of a character.
func cut(text string, limit int) string {
	return utf8cut.Bytes(strings.ToValidUTF8(text, "\uFFFD"), limit)
}
