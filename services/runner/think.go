package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

const (
	// resultMax bounds what one result puts into the model's context. It holds what
	// the server's tools answer where the model asks for nothing else, 64 KiB of
	// a file, since what follows is asked for from behind that.
	resultMax = 96 << 10
	// localMax bounds the results of local tools that are kept with one round: a
	// request has 4 MiB at most, and an event 3.
	localMax = 1 << 20
	// callsMax is how many calls one round may have.
	callsMax = 64
	dropped  = "[dropped: the context became too long; ask again for what you need]"
)

const guidance = `You are an agent whose work is kept by Quartet. What you know of earlier conversations stands below; what is not written into work items, plan files and reports is forgotten when this turn ends. Work items are objectives, their plan files interpret them, todos are progress: keep them up to date as you go. Complete an item with its report as your text in the same reply. When you cannot go on, call WaitFor: it ends the turn and wakes you. When there is nothing left to do in this turn, answer without calling a tool.`

// conversation is one turn as the model sees it.
type conversation struct {
	r       *Runner
	t       *client.Turn
	files   *workspace
	request Request
	shrunk  bool
}

// think is the handler of a turn.
func (r *Runner) think(ctx context.Context, t *client.Turn) error {
	r.show.began(t)
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
		goOn, err := c.round(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		if !goOn {
			return nil
		}
	}
	r.show.event(turnEvent(t, "notice", fmt.Sprintf("the turn is completed after %d rounds, the most that are allowed", r.cfg.MaxRounds)))
	return nil
}

// opening is what the turn begins with: its message, with the weight it has, and
// what operators said meanwhile.
func opening(t *client.Turn) string {
	m := t.Message
	text := m.GetText()
	if text == "" {
		text = "(no text)"
	}
	text = fmt.Sprintf("[%s, %s]\n%s", lower(m.GetKind().String(), "MESSAGE_KIND_"), lower(m.GetAuthority().String(), "AUTHORITY_"), text)
	if said := interjected(t.Interjections); said != "" {
		text += "\n\n" + said
	}
	return text
}

func interjected(ms []*agentv1.Message) string {
	var lines []string
	for _, m := range ms {
		lines = append(lines, "[interjection of the operator]\n"+m.GetText())
	}
	return strings.Join(lines, "\n\n")
}

// round asks the model once, submits what it said, and says whether the turn
// goes on.
func (c *conversation) round(ctx context.Context) (goOn bool, err error) {
	asked, span := c.span(ctx)
	said, err := c.reply(asked)
	told(span, said, err)
	if err != nil {
		return false, err
	}
	c.name(said)
	reply := client.Reply{
		Text: limit(strings.ReplaceAll(said.Text, "\x00", "\uFFFD"), fault.MaxRoundTextBytes), Usage: &agentv1.TokenUsage{InputTokens: said.InputTokens, OutputTokens: said.OutputTokens},
	}
	local, taken := map[string]*agentv1.ToolResult{}, 0
	for _, call := range said.Calls {
		if r := c.runLocal(ctx, call); r != nil {
			if taken += len(jsonOf(r.GetResult())); taken > localMax {
				taken -= len(jsonOf(r.GetResult()))
				r = failedLocal(call, &localError{"limit_exceeded", fmt.Sprintf("the local results of this reply take more than %d bytes, so this one is left out; what was written is written; read less in one reply", localMax)})
			}
			local[call.ID] = r
			reply.Local = append(reply.Local, r)
			continue
		}
		args := &structpb.Struct{}
		_ = args.UnmarshalJSON(object(call.Arguments)) // runLocal took what is no object
		reply.Calls = append(reply.Calls, &agentv1.ToolCall{CallId: call.ID, Name: call.Name, Arguments: args})
	}
	if err := ctx.Err(); err != nil {
		return false, context.Cause(ctx)
	}
	began := time.Now()
	got, err := c.t.Round(ctx, reply)
	if errors.Is(err, fault.InvalidArgument) || errors.Is(err, fault.LimitExceeded) || errors.Is(err, fault.TooLarge) {
		// What the model wrote is not taken as it is. It is for the model to mend,
		// and nothing of it was kept or run.
		for _, call := range reply.Calls {
			r := failedLocal(Call{ID: call.GetCallId(), Name: call.GetName()}, &localError{"invalid_argument", "the reply was not taken, and none of its calls was run: " + fault.From(err).Message()})
			local[call.GetCallId()] = r
			r.ToolName = limit(r.GetToolName(), fault.MaxNameChars)
			reply.Local = append(reply.Local, r)
		}
		reply.Calls = nil
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
	for _, call := range said.Calls {
		r, took := remote[call.ID], time.Since(began)
		if r == nil {
			r, took = local[call.ID], 0
		}
		c.r.show.tool(c.t, call, r, took)
		next.Results = append(next.Results, Result{CallID: call.ID, Text: resultText(r), Failed: r.GetStatus() == agentv1.ToolStatus_TOOL_STATUS_ERROR})
	}
	c.r.show.usage(c.t, said)
	var words []string
	for _, n := range got.GetNotices() {
		c.r.show.event(turnEvent(c.t, "notice", n))
		words = append(words, "[notice] "+n)
	}
	if text := interjected(got.GetInterjections()); text != "" {
		for _, m := range got.GetInterjections() {
			c.r.show.event(turnEvent(c.t, "interjection", m.GetText()))
		}
		words = append(words, text)
	}
	if said.CutOff && len(said.Calls) == 0 {
		words = append(words, "[notice] Your reply was cut off at the limit of tokens. Go on.")
	}
	next.Text = strings.Join(words, "\n\n")
	if said.Text != "" || len(said.Calls) > 0 {
		c.request.Entries = append(c.request.Entries, Entry{Assistant: true, Text: said.Text, Calls: said.Calls})
	}
	c.request.Entries = append(c.request.Entries, next)
	wants := len(said.Calls) > 0 || len(got.GetInterjections()) > 0 || said.CutOff
	return wants && !got.GetTurnEnded(), nil
}

// name gives calls ids of their own where the model's are missing, too long or
// the same.
func (c *conversation) name(said *Answer) {
	seen := map[string]bool{}
	for i := range said.Calls {
		id := said.Calls[i].ID
		if id == "" || len(id) > fault.MaxNameChars || seen[id] {
			id = fmt.Sprintf("call_%d_%d", c.t.Rounds(), i)
			said.Calls[i].ID = id
		}
		seen[id] = true
	}
}

// runLocal runs a call of a local tool, and answers what cannot be submitted.
// nil: the call is the server's.
func (c *conversation) runLocal(ctx context.Context, call Call) *agentv1.ToolResult {
	var args map[string]any
	raw := call.Arguments
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	switch err := json.Unmarshal(raw, &args); {
	case err != nil:
		return failedLocal(call, &localError{"malformed_json", fmt.Sprintf("the arguments of %s are not a JSON object: %v", call.Name, err)})
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

// reply asks the model, again while its provider's trouble may pass.
func (c *conversation) reply(ctx context.Context) (*Answer, error) {
	for n := 1; ; n++ {
		said, err := c.r.model.Reply(ctx, c.request, func(text string) { c.r.show.stream(c.t, text) })
		c.r.show.endStream(c.t)
		if err == nil {
			if len(said.Calls) > callsMax {
				said.Calls = said.Calls[:callsMax]
			}
			c.r.show.said(c.t, said.Text)
			return said, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		f := judge(err)
		switch f.class {
		case denied:
			// The operator's key is at fault, and every message would meet it.
			return nil, client.Released(&endError{fmt.Sprintf("the provider refuses the credential in $%s: %s; check the key and what it may do; the message is back in the lane", KeyVariable(c.r.cfg.Provider), f.text)})
		case misset:
			return nil, client.Released(&endError{fmt.Sprintf("the provider does not know what is asked for: %s; check --model and --base-url; the message is back in the lane", f.text)})
		case unpaid:
			// The message is not to blame: it waits for whoever runs next.
			return nil, client.Released(&endError{fmt.Sprintf("the provider's account has no credit left, or is at its spending limit: %s; the message is back in the lane", f.text)})
		case refused:
			return nil, client.Fatal(fmt.Errorf("the provider refuses the request: %s", f.text))
		case declined:
			if !errors.Is(err, errDeclined) {
				err = fmt.Errorf("the provider declined to pass the message on: %s", f.text)
			}
			return nil, client.Fatal(err)
		case tooLong:
			if !c.shrink() {
				return nil, client.OverBudget(fmt.Errorf("the context does not fit the model: %s", f.text))
			}
			c.r.show.event(turnEvent(c.t, "shrunk", "the context did not fit; the oldest results are dropped from it"))
			continue
		case passing:
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

// shrink drops the oldest half of the results from the context, once. The calls
// stay, so that every result still has one.
func (c *conversation) shrink() bool {
	if c.shrunk {
		return false
	}
	c.shrunk = true
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

// resultText is the envelope of SPEC C4 as a model reads it.
func resultText(r *agentv1.ToolResult) string {
	if r == nil {
		return "error: the server gave no result"
	}
	var text string
	if e := r.GetError(); e != nil {
		text = "error: " + e.GetKind() + ": " + e.GetMessage()
		if e.GetRecoveryHint() != "" {
			text += "\nHow to mend it: " + e.GetRecoveryHint()
		}
		if e.GetRetryable() {
			text += "\nThe same call may succeed later."
		}
	} else {
		text = jsonOf(r.GetResult())
	}
	for _, w := range r.GetWarnings() {
		text += "\nwarning: " + jsonOf(w)
	}
	if len(text) > resultMax {
		const mark = "\n[the rest is not shown, also of what next_offset follows; ask for less at a time]"
		text = limit(text, resultMax-len(mark)) + mark
	}
	return text
}

func jsonOf(s *structpb.Struct) string {
	raw, err := protojson.Marshal(s)
	var out any
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return "{}"
	}
	return compact(out) // protojson's blanks are not stable
}

// compact is JSON for a model: what is text in it stays readable, with < and &
// as they are.
func compact(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "{}"
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// limit cuts text at most bytes, and says so.
func limit(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	const mark = "\n[cut]"
	return strings.ToValidUTF8(text[:most-len(mark)], "") + mark
}

// Outcome of a turn, for people.
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
