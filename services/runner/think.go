package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/terminal"
	"quartet/pkg/utf8cut"
)

const (
	// resultMax limits what one result adds to the model's context. It is larger than
	// the default result of the server's tools, 64 KiB of a file, so that the model sees
	// everything before next_offset.
	resultMax = 96 << 10
	// localMax limits the results of local tools that are stored with one round: a
	// request has at most 4 MiB, and an event 3.
	localMax = 1 << 20
	// callsMax is how many calls one round may have.
	callsMax = 64
	// dropped replaces a result that shrink removed.
	dropped = "[dropped: the context became too long; ask again for what you need]"
)

// guidance is the part of the system prompt that is the same for every agent.
const guidance = `You are an agent whose work is kept by Quartet. What you know of earlier conversations is below; what is not written into work items, plan files and reports is forgotten when this turn ends. Work items are objectives, their plan files interpret them, todos are progress: keep them up to date as you go. Complete an item with its report as your text in the same reply. When you cannot go on, call WaitFor: it ends the turn and wakes you. When there is nothing left to do in this turn, answer without calling a tool.`

// conversation is one turn as the model sees it.
type conversation struct {
	r       *Runner
	t       *client.Turn
	files   *workspace // nil if the model gets no files
	request Request    // of the next round: the conversation so far
}

// think is the client.Handler that runs a turn: round by round, until the model needs none or
// MaxRounds are done.
func (r *Runner) think(ctx context.Context, t *client.Turn) error {
	r.show.started(t)
	files, err := r.workspaceOf(t)
	if err != nil {
		return client.Fatal(err)
	}
	if files != nil {
		defer func() { _ = files.root.Close() }()
	}
	c := &conversation{r: r, t: t, files: files}
	if c.request.Tools, err = r.toolsOf(ctx, t, files != nil); err != nil {
		return err
	}
	c.request.System = strings.TrimSpace(r.cfg.System + "\n\n" + guidance + "\n\n" + t.Context.GetText())
	c.request.Entries = []Entry{{Text: opening(t)}}
	for range r.cfg.MaxRounds {
		more, err := c.round(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		if !more {
			return nil
		}
	}
	r.show.event(turnEvent(t, "notice", fmt.Sprintf("the turn is completed after %s, the most that are allowed",
		terminal.Count(r.cfg.MaxRounds, "round", "rounds"))))
	return nil
}

// opening returns the first text of the turn: its message with its kind and authority,
// and the interjections of operators since.
func opening(t *client.Turn) string {
	m := t.Message
	text := m.GetText()
	if text == "" {
		text = "(no text)"
	}
	text = fmt.Sprintf("[%s, %s]\n%s", lower(m.GetKind().String(), "MESSAGE_KIND_"),
		lower(m.GetAuthority().String(), "AUTHORITY_"), text)
	if interjections := interjected(t.Interjections); interjections != "" {
		text += "\n\n" + interjections
	}
	return text
}

// interjected formats interjections for the model.
func interjected(ms []*agentv1.Message) string {
	var lines []string
	for _, m := range ms {
		lines = append(lines, "[interjection of the operator]\n"+m.GetText())
	}
	return strings.Join(lines, "\n\n")
}

// round requests one reply of the model and submits it. It reports whether the turn
// needs a further round.
func (c *conversation) round(ctx context.Context) (more bool, err error) {
	spanCtx, span := c.span(ctx)
	answer, err := c.reply(spanCtx)
	endSpan(span, answer, err)
	if err != nil {
		return false, err
	}
	c.nameCalls(answer)
	reply := client.Reply{
		Text:  limit(strings.ReplaceAll(answer.Text, "\x00", "\uFFFD"), fault.MaxRoundTextBytes),
		Usage: &agentv1.TokenUsage{InputTokens: answer.InputTokens, OutputTokens: answer.OutputTokens},
	}
	c.addSummary(ctx, &reply)
	reply.LocalCalls = c.localCalls(answer.Calls)
	refused, err := c.startLocal(ctx, reply.LocalCalls)
	if err != nil {
		return false, err
	}
	local, taken := map[string]*agentv1.ToolResult{}, 0
	for _, call := range answer.Calls {
		r := refused[call.ID]
		if r == nil {
			r = c.runLocal(ctx, call)
		}
		if r != nil {
			if taken += len(jsonOf(r.GetResult())); taken > localMax {
				taken -= len(jsonOf(r.GetResult()))
				r = failedLocal(call, &localError{"limit_exceeded", fmt.Sprintf("the local results of this reply "+
					"take more than %d bytes, so this one is left out; what was written is written; read less "+
					"in one reply", localMax)})
			}
			local[call.ID] = r
			reply.Local = append(reply.Local, r)
			continue
		}
		args := &structpb.Struct{}
		_ = args.UnmarshalJSON(object(call.Arguments)) // runLocal answered calls whose arguments are no object
		reply.Calls = append(reply.Calls, &agentv1.ToolCall{CallId: call.ID, Name: call.Name, Arguments: args})
	}
	if err := ctx.Err(); err != nil {
		return false, context.Cause(ctx)
	}
	began := time.Now()
	got, err := c.t.Round(ctx, reply)
	if errors.Is(err, fault.InvalidArgument) || errors.Is(err, fault.LimitExceeded) || errors.Is(err, fault.TooLarge) {
		// The server refused the reply, so nothing of it was stored or run. The model
		// gets the refusal as the result of each call and can correct them.
		for _, call := range reply.Calls {
			r := failedLocal(Call{ID: call.GetCallId(), Name: call.GetName()},
				&localError{"invalid_argument", "the reply was refused, and none of its calls was run: " +
					fault.From(err).Message()})
			local[call.GetCallId()] = r
			r.ToolName = limit(r.GetToolName(), fault.MaxNameChars)
			reply.Local = append(reply.Local, r)
		}
		reply.Calls, reply.Summary = nil, nil
		got, err = c.t.Round(ctx, reply)
	}
	if err != nil {
		return false, err
	}
	remote := map[string]*agentv1.ToolResult{}
	for _, r := range got.GetToolResults() {
		remote[r.GetCallId()] = r
	}
	next := Entry{}
	for _, call := range answer.Calls {
		r, took := remote[call.ID], time.Since(began)
		if r == nil {
			r, took = local[call.ID], 0
		}
		c.r.show.tool(c.t, call, r, took)
		next.Results = append(next.Results, Result{
			CallID: call.ID, Text: resultText(r),
			Failed: r.GetStatus() == agentv1.ToolStatus_TOOL_STATUS_ERROR,
		})
	}
	c.r.show.usage(c.t, answer)
	var notes []string
	for _, n := range got.GetNotices() {
		c.r.show.event(turnEvent(c.t, "notice", n))
		notes = append(notes, "[notice] "+n)
	}
	if text := interjected(got.GetInterjections()); text != "" {
		for _, m := range got.GetInterjections() {
			c.r.show.event(turnEvent(c.t, "interjection", m.GetText()))
		}
		notes = append(notes, text)
	}
	if answer.CutOff && len(answer.Calls) == 0 {
		notes = append(notes, "[notice] Your reply was cut off at the limit of tokens. Go on.")
	}
	next.Text = strings.Join(notes, "\n\n")
	if answer.Text != "" || len(answer.Calls) > 0 {
		c.request.Entries = append(c.request.Entries, Entry{Assistant: true, Text: answer.Text, Calls: answer.Calls})
	}
	c.request.Entries = append(c.request.Entries, next)
	wants := len(answer.Calls) > 0 || len(got.GetInterjections()) > 0 || answer.CutOff
	return wants && !got.GetTurnEnded(), nil
}

// nameCalls replaces ids of calls that are missing, too long or not unique within the reply.
func (c *conversation) nameCalls(answer *Answer) {
	seen := map[string]bool{}
	for i := range answer.Calls {
		id := answer.Calls[i].ID
		if id == "" || len(id) > fault.MaxNameChars || seen[id] {
			id = fmt.Sprintf("call_%d_%d", c.t.Rounds(), i)
			answer.Calls[i].ID = id
		}
		seen[id] = true
	}
}

// localCalls returns the calls that runLocal executes, as they are recorded.
func (c *conversation) localCalls(calls []Call) []*agentv1.ToolCall {
	var out []*agentv1.ToolCall
	for _, call := range calls {
		if !isLocal(call.Name) || c.files == nil {
			continue
		}
		var args map[string]any
		if len(call.Arguments) == 0 || json.Unmarshal(call.Arguments, &args) == nil {
			out = append(out, &agentv1.ToolCall{CallId: call.ID, Name: call.Name, Arguments: abridged(args)})
		}
	}
	return out
}

// startLocal records those of the local calls that change files, before they are executed. If
// the server refuses the record, none of them may be executed, and refused has the refusal as
// the result of each, by call id.
func (c *conversation) startLocal(ctx context.Context, calls []*agentv1.ToolCall) (
	refused map[string]*agentv1.ToolResult, err error,
) {
	calls = slices.DeleteFunc(slices.Clone(calls), func(call *agentv1.ToolCall) bool {
		return !changesFiles(call.GetName())
	})
	if len(calls) == 0 || ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	err = c.t.StartLocal(ctx, calls)
	if !errors.Is(err, fault.InvalidArgument) && !errors.Is(err, fault.LimitExceeded) &&
		!errors.Is(err, fault.TooLarge) {
		return nil, err
	}
	refused = map[string]*agentv1.ToolResult{}
	for _, call := range calls {
		refused[call.GetCallId()] = failedLocal(Call{ID: call.GetCallId(), Name: call.GetName()},
			&localError{"invalid_argument", "the call was not run: " + fault.From(err).Message()})
	}
	return refused, nil
}

// runLocal runs a call of a local file tool and returns its result. For a call that names no tool, or whose arguments
// are not a JSON object, it returns an error result, also if the tool is the server's; missing arguments and null
// count as an empty object. It returns nil for every other call, which the server answers; in a turn without a
// workspace these include calls of local tools.
func (c *conversation) runLocal(ctx context.Context, call Call) *agentv1.ToolResult {
	var args map[string]any
	raw := call.Arguments
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	switch err := json.Unmarshal(raw, &args); {
	case err != nil:
		return failedLocal(call, &localError{"malformed_json", fmt.Sprintf("the arguments of %s are not a JSON "+
			"object: %v", call.Name, err)})
	case call.Name == "":
		return failedLocal(call, &localError{"invalid_argument", "the call names no tool"})
	case !isLocal(call.Name) || c.files == nil:
		return nil
	case ctx.Err() != nil:
		return failedLocal(call, &localError{"cancelled", "the run ended before the call"})
	}
	call.Arguments = raw
	return c.files.run(call)
}

// reply requests a reply of the model, and repeats the request after transient errors of the
// provider. An error has the outcome with which the turn ends, by client.Retryable, Released,
// Fatal or OverBudget. If ctx ends, the error is its cause. Calls of a reply beyond callsMax are dropped.
func (c *conversation) reply(ctx context.Context) (*Answer, error) {
	for n := 1; ; n++ {
		answer, err := c.r.model.Reply(ctx, c.request, func(text string) { c.r.show.stream(c.t, text) })
		c.r.show.endStream(c.t)
		if err == nil {
			if len(answer.Calls) > callsMax {
				answer.Calls = answer.Calls[:callsMax]
			}
			c.r.show.text(c.t, answer.Text)
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		f := classify(err)
		switch f.class {
		case denied:
			// The key is invalid, so every other turn would fail too.
			return nil, client.Released(&endError{fmt.Sprintf("the provider refuses the credential in $%s: %s; check "+
				"the key and what it may do; the message is back in the lane", KeyVariable(c.r.cfg.Provider), f.text)})
		case misconfigured:
			return nil, client.Released(&endError{fmt.Sprintf("the provider does not know this model or API: %s; "+
				"check --model and --base-url; the message is back in the lane", f.text)})
		case unpaid:
			// The failure is not caused by the message, so it is released for a later turn.
			return nil, client.Released(&endError{fmt.Sprintf("the provider's account has no credit left, or is at "+
				"its spending limit: %s; the message is back in the lane", f.text)})
		case refused:
			return nil, client.Fatal(fmt.Errorf("the provider refuses the request: %s", f.text))
		case declined:
			if !errors.Is(err, errDeclined) {
				err = fmt.Errorf("the provider declined to forward the message: %s", f.text)
			}
			return nil, client.Fatal(err)
		case tooLong:
			if !c.shrink() {
				if c.results() > 0 {
					// What was done is kept; another turn begins with a context of its own.
					return nil, client.Retryable(fmt.Errorf("the context of this turn does not fit the model any "+
						"more: %s", f.text))
				}
				return nil, client.OverBudget(fmt.Errorf("the context does not fit the model: %s", f.text))
			}
			c.r.show.event(turnEvent(c.t, "shrunk", "the context did not fit; the oldest results are dropped from it"))
			n-- // it is another request, and each one has fewer results
			continue
		case temporary:
		}
		if n >= c.r.cfg.Attempts {
			return nil, client.Retryable(fmt.Errorf("the provider did not answer in %d attempts: %s", n, f.text))
		}
		pause := c.r.cfg.pause(n, f.after)
		c.r.show.retry(c.t, f.text, pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// shrink replaces the texts of the oldest half of the results by the note dropped, and reports whether it
// replaced any. Texts that are not longer than the note do not count, so shrink can be repeated until the
// context fits or no text is left. Calls and results stay paired.
func (c *conversation) shrink() bool {
	var all []*Result
	for i := range c.request.Entries {
		for j := range c.request.Entries[i].Results {
			if r := &c.request.Entries[i].Results[j]; len(r.Text) > len(dropped) {
				all = append(all, r)
			}
		}
	}
	for _, r := range all[:(len(all)+1)/2] {
		r.Text = dropped
	}
	return len(all) > 0
}

// results returns how many results the context has, including those whose text was removed.
func (c *conversation) results() int {
	n := 0
	for _, e := range c.request.Entries {
		n += len(e.Results)
	}
	return n
}

// resultText formats a result (SPEC C4) for the model: the JSON of a success or the text of an
// error, then the warnings. It is cut to resultMax bytes, and says so. A nil result is an error.
func resultText(r *agentv1.ToolResult) string {
	if r == nil {
		return "error: the server gave no result"
	}
	var text string
	if e := r.GetError(); e != nil {
		text = "error: " + e.GetKind() + ": " + e.GetMessage()
		if e.GetRecoveryHint() != "" {
			text += "\nHow to fix it: " + e.GetRecoveryHint()
		}
		if e.GetRetryable() {
			text += "\nThe same call may succeed later."
		}
		if len(e.GetDetails().GetFields()) > 0 {
			text += "\ndetails: " + jsonOf(e.GetDetails())
		}
	} else {
		text = jsonOf(r.GetResult())
	}
	for _, w := range r.GetWarnings() {
		text += "\nwarning: " + jsonOf(w)
	}
	if len(text) > resultMax {
		const mark = "\n[the rest is not shown, including text before next_offset; request less at a time]"
		text = limit(text, resultMax-len(mark)) + mark
	}
	return text
}

// jsonOf returns s as compact JSON.
func jsonOf(s *structpb.Struct) string {
	raw, err := protojson.Marshal(s)
	var out any
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return "{}"
	}
	return compact(out) // the blanks of protojson vary between builds
}

// compact returns v as JSON without HTML escapes, so that code in it stays readable. A value that
// cannot be encoded becomes {}.
func compact(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "{}"
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// limit returns at most maxBytes bytes of a text, as valid UTF-8, and marks a cut.
func limit(text string, maxBytes int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxBytes {
		return text
	}
	const mark = "\n[cut]"
	return utf8cut.Bytes(text, maxBytes-len(mark)) + mark
}

// outcomeOf describes for people the outcome of a turn that ended with err, which may be nil.
func outcomeOf(t *client.Turn, err error) string {
	switch {
	case errors.Is(err, client.ErrAborted):
		return "aborted"
	case errors.Is(err, client.ErrLost):
		return "lost"
	case errors.Is(err, client.ErrStopping):
		return "handed back"
	case err == nil && t.Ended():
		return "completed by its last round"
	}
	return lower(client.Outcome(err).String(), "TURN_OUTCOME_")
}
