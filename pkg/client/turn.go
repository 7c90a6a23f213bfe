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

// finishTerm is how long a runner that stops tries to release its turn, and how long one that
// lost its turn asks how that ended.
const finishTerm = 10 * time.Second

// Turn is a turn that this runner holds. Its methods must be called by one goroutine at a
// time.
type Turn struct {
	// Record is the turn as it was leased.
	Record *agentv1.Turn
	// Message is what the turn is about.
	Message *agentv1.Message
	// Interjections are operators' messages that were delivered with the turn.
	Interjections []*agentv1.Message
	// Context is the context for the model.
	Context *agentv1.ContextProjection
	// Tools are the names of the tools that Round executes.
	Tools []string
	// Agent is the agent of the turn.
	Agent *agentv1.Agent
	// Namespace is the namespace of the agent.
	Namespace string
	// Token is a credential of the agent that is valid during this run; see As.
	Token string

	client *Client
	cancel context.CancelCauseFunc // of the handler's context
	index  int32                   // of the next round
	ended  atomic.Bool             // a round ended the turn
	reason string                  // why it did; valid once ended is set
}

// Reply is the reply of a model in one round.
type Reply struct {
	// Text is the text of the reply, at most 256 KiB. If one of Calls is CompleteWorkItem, Text
	// becomes the report of the work item.
	Text string
	// Calls are the calls of tools that the server executes, at most 64.
	Calls []*agentv1.ToolCall
	// LocalCalls are the calls of tools that the runner executed itself, at most 64, and Local
	// their results.
	Local      []*agentv1.ToolResult
	LocalCalls []*agentv1.ToolCall
	// Usage is what the round cost.
	Usage *agentv1.TokenUsage
	// Summary is a summary of the conversation so far, at most 2048 bytes, which later contexts
	// show in its place; see Summary. Nil: the current summary remains.
	Summary *agentv1.ConversationSummary
}

// Summary returns, for Reply, a summary of the conversation before the message of the turn. The caller
// may set its ThroughTurnId to an earlier turn, if that is the last one that the summary covers.
func Summary(text string) *agentv1.ConversationSummary {
	return &agentv1.ConversationSummary{Text: text}
}

// Call returns a tool call. arguments are JSON values as the tool's schema says.
func Call(callID, name string, arguments map[string]any) (*agentv1.ToolCall, error) {
	args, err := structpb.NewStruct(arguments)
	if err != nil {
		return nil, fmt.Errorf("arguments of %s: %w", name, err)
	}
	return &agentv1.ToolCall{CallId: callID, Name: name, Arguments: args}, nil
}

// CommandOf returns a description of the command that an ExecCommand call started, such as
// "tsk_01h… failed: exit code 1", and whether the command failed. It returns "" and false for the results of
// other tools. The result of ExecCommand itself is a success whenever the command was started.
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

// Round submits the reply of the model and returns the results of its calls in order, with
// operators' interjections and notices of the server (SPEC A6). A failed call is a result and
// not an error. After transient errors (see Passing) the reply is submitted again until ctx
// ends, and the error is then the cause of ctx; its calls are executed once. If the server
// refuses a reply as invalid, nothing of it was executed, and a corrected one may be submitted.
// If this run does not hold the turn any more, the error is an *EndedError, which is then also
// the cause of the handler's context. After a response with turn_ended the handler should return
// nil; a further Round returns fault.TurnEnded.
func (t *Turn) Round(ctx context.Context, r Reply) (*agentv1.SubmitRoundResponse, error) {
	if t.ended.Load() {
		return nil, fault.TurnEnded.Newf("turn %s ended with %s; there are no further rounds", t.Record.GetTurnId(),
			t.reason)
	}
	req := &agentv1.SubmitRoundRequest{
		AgentId: t.Record.GetAgentId(), TurnId: t.Record.GetTurnId(), RunId: t.Record.GetRunId(), RoundIndex: t.index,
		Text: r.Text, ToolCalls: r.Calls, LocalToolCalls: r.LocalCalls, LocalToolResults: r.Local, Usage: r.Usage,
		ConversationSummary: r.Summary,
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

// StartLocal records calls that the runner is about to execute itself, so that the agent learns of them
// in a later turn if the runner is lost before the Round with their results. It executes nothing. Calls
// without an effect need not be recorded. Each call must have a call id. Errors are those of Round.
func (t *Turn) StartLocal(ctx context.Context, calls []*agentv1.ToolCall) error {
	if t.ended.Load() {
		return fault.TurnEnded.Newf("turn %s ended with %s; start no further calls", t.Record.GetTurnId(), t.reason)
	}
	req := &agentv1.StartLocalCallsRequest{
		AgentId: t.Record.GetAgentId(), TurnId: t.Record.GetTurnId(), RunId: t.Record.GetRunId(), RoundIndex: t.index,
		Calls: calls,
	}
	_, err := Again(ctx, func(ctx context.Context) (*agentv1.StartLocalCallsResponse, error) {
		return t.client.Agents.StartLocalCalls(t.Traced(t.as(ctx)), req)
	})
	if over(err) {
		if cause := t.lost(context.WithoutCancel(ctx), nil); cause != nil {
			err = cause
		}
	}
	return err
}

// as makes calls for a turn of another namespace use the token of the turn, because the
// runner's credential is for its own namespace.
func (t *Turn) as(ctx context.Context) context.Context {
	if t.Record.GetAcquiredFrom() == "" {
		return ctx
	}
	return As(ctx, t.Token)
}

// Traced makes calls under ctx part of the turn's trace (W3C Trace Context), if it
// has one and ctx has no other. Round does so itself.
func (t *Turn) Traced(ctx context.Context) context.Context {
	if t.Record.GetTraceparent() == "" {
		return ctx
	}
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get("traceparent")) > 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "traceparent", t.Record.GetTraceparent())
}

// Rounds returns how many rounds the turn has so far.
func (t *Turn) Rounds() int { return int(t.index) }

// Ended reports whether a round ended the turn.
func (t *Turn) Ended() bool { return t.ended.Load() }

// over reports whether err is RUN_STALE or TURN_ENDED: the run does not hold its agent any more.
func over(err error) bool {
	return errors.Is(err, fault.RunStale) || errors.Is(err, fault.TurnEnded)
}

// lost must be called when the server says that the turn has ended. It cancels the handler's context
// with an *EndedError as cause, and returns that. known is the turn after its end; if it is nil, lost asks
// the server. If the turn was completed, which only a round or the finish of this runner does, lost
// cancels nothing and returns nil.
func (t *Turn) lost(ctx context.Context, known *agentv1.Turn) error {
	if known == nil {
		term, cancel := context.WithTimeout(ctx, finishTerm)
		defer cancel()
		resp, err := Again(term, func(ctx context.Context) (*agentv1.GetTurnResponse, error) {
			return t.client.Agents.GetTurn(t.as(ctx), &agentv1.GetTurnRequest{
				AgentId: t.Record.GetAgentId(),
				TurnId:  t.Record.GetTurnId(),
			})
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

// finish ends the turn with the outcome of its handler's error, unless it has ended.
func (t *Turn) finish(ctx context.Context, result error) error {
	var gone *EndedError
	if t.ended.Load() || errors.As(context.Cause(ctx), &gone) {
		return nil
	}
	req := &agentv1.FinishTurnRequest{
		AgentId: t.Record.GetAgentId(), TurnId: t.Record.GetTurnId(), RunId: t.Record.GetRunId(),
		Outcome: Outcome(result),
	}
	if result != nil {
		req.Message = cut(result.Error(), fault.MaxFreeTextBytes)
	}
	// The outcome is reported also when the runner stops meanwhile, for a bounded time.
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
