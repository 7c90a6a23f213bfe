package runner

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/terminal"
	"quartet/pkg/utf8cut"
)

// event is one step of the runner's progress, as programs read it.
type event struct {
	Time string `json:"time"`
	// ready, turn_started, text, tool, usage, notice, announced, interjection, shrunk, summary, retry, trouble,
	// turn_ended
	Event        string  `json:"event"`
	AgentID      string  `json:"agent_id,omitempty"`
	TurnID       string  `json:"turn_id,omitempty"`
	Text         string  `json:"text,omitempty"`
	Tool         string  `json:"tool,omitempty"`
	CallID       string  `json:"call_id,omitempty"`
	Status       string  `json:"status,omitempty"`
	Seconds      float64 `json:"seconds,omitempty"` // of a tool: how long it took; of a retry: the pause
	InputTokens  int64   `json:"input_tokens,omitempty"`
	OutputTokens int64   `json:"output_tokens,omitempty"`
}

// turnEvent returns an event of a turn.
func turnEvent(t *client.Turn, name, text string) event {
	return event{Event: name, AgentID: t.Record.GetAgentId(), TurnID: t.Record.GetTurnId(), Text: text}
}

// show writes the runner's progress: text for people, or JSON lines for programs.
type show struct {
	out          io.Writer
	json, colour bool
	names        bool // several turns may run, so each line names its agent

	mu        sync.Mutex
	streaming string              // the turn whose text is being written, if the line is open
	spent     map[string][2]int64 // tokens in and out of the running turns, by turn id
}

// paint returns text in a colour, if colours are wanted.
func (s *show) paint(colour, text string) string {
	if !s.colour {
		return text
	}
	return terminal.Paint(colour, text)
}

// event writes an event as a line.
func (s *show) event(e event) {
	colours := map[string]string{
		"retry": terminal.Yellow, "trouble": terminal.Yellow, "shrunk": terminal.Yellow,
		"announced": terminal.Cyan, "interjection": terminal.Cyan, "notice": terminal.Dim, "summary": terminal.Dim,
		"ready": terminal.Dim,
	}
	s.line(e, s.paint(colours[e.Event], strings.ReplaceAll(e.Event, "_", " ")+": "+terminal.Printable(e.Text)))
}

// line writes a line of progress: e in JSON mode, otherwise text.
func (s *show) line(e event, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.json {
		e.Time = time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
		if raw, err := json.Marshal(e); err == nil {
			fmt.Fprintf(s.out, "%s\n", raw) //nolint:errcheck // nobody reads the output any more; the turn continues
		}
		return
	}
	s.close()
	if s.names && e.AgentID != "" {
		text = s.paint(terminal.Bold, e.AgentID) + " " + text
	}
	fmt.Fprintln(s.out, text) //nolint:errcheck // as above
}

// close ends an open line of text. The caller holds mu.
func (s *show) close() {
	if s.streaming != "" {
		fmt.Fprintln(s.out) //nolint:errcheck // as above
		s.streaming = ""
	}
}

// stream writes a part of the model's text as it arrives. It writes nothing in JSON mode, or if
// several turns may run; text writes the complete text in these cases.
func (s *show) stream(t *client.Turn, text string) {
	if s.json || s.names {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streaming = t.Record.GetTurnId()
	fmt.Fprint(s.out, terminal.Printable(text)) //nolint:errcheck // as above
}

// endStream ends the line of streamed text, if one is open.
func (s *show) endStream(*client.Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
}

// text writes the complete text of a reply if stream did not write it.
func (s *show) text(t *client.Turn, text string) {
	if text != "" && (s.json || s.names) {
		s.line(turnEvent(t, "text", text), terminal.Printable(text))
	}
}

// started writes that a turn started.
func (s *show) started(t *client.Turn) {
	m := t.Message
	e := turnEvent(t, "turn_started", m.GetText())
	kind := lower(m.GetKind().String(), "MESSAGE_KIND_")
	s.line(e, s.paint(terminal.Bold, "── "+kind)+" "+terminal.Printable(brief(m.GetText()))+" "+
		s.paint(terminal.Dim, t.Record.GetTurnId()))
}

// statusName returns the name of a status in lower case: success or error.
func statusName(s agentv1.ToolStatus) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "TOOL_STATUS_"))
}

// tool writes one call: its tool, arguments, outcome and time.
func (s *show) tool(t *client.Turn, c Call, r *agentv1.ToolResult, took time.Duration) {
	summary := r.GetSummaryText()
	command, failed := client.CommandOf(r)
	if command != "" {
		summary = command
	}
	e := turnEvent(t, "tool", summary)
	e.Tool, e.CallID, e.Status, e.Seconds = c.Name, c.ID, statusName(r.GetStatus()), took.Seconds()
	mark, colour := "✓", terminal.Green
	if r.GetStatus() == agentv1.ToolStatus_TOOL_STATUS_ERROR || failed {
		mark, colour = "✗", terminal.Red
	}
	arguments := brief(string(c.Arguments))
	if len(arguments) > 100 {
		arguments = utf8cut.Bytes(arguments, 100) + "…"
	}
	text := s.paint(colour, mark+" "+terminal.Printable(c.Name)) + " " +
		s.paint(terminal.Dim, terminal.Printable(arguments)) + " " + terminal.Printable(brief(summary))
	if took >= time.Millisecond {
		text += s.paint(terminal.Dim, fmt.Sprintf(" (%s)", took.Round(time.Millisecond)))
	}
	s.line(e, text)
}

// usage adds the tokens of a round to the sum of its turn, which is shown when the turn ends.
// In JSON mode it also writes an event for the round.
func (s *show) usage(t *client.Turn, a *Answer) {
	s.mu.Lock()
	if s.spent == nil {
		s.spent = map[string][2]int64{}
	}
	sum := s.spent[t.Record.GetTurnId()]
	s.spent[t.Record.GetTurnId()] = [2]int64{sum[0] + a.InputTokens, sum[1] + a.OutputTokens}
	s.mu.Unlock()
	if s.json {
		e := turnEvent(t, "usage", "")
		e.InputTokens, e.OutputTokens = a.InputTokens, a.OutputTokens
		s.line(e, "")
	}
}

// retry writes that the model is called again after a pause.
func (s *show) retry(t *client.Turn, reason string, pause time.Duration) {
	e := turnEvent(t, "retry", reason)
	e.Seconds = pause.Seconds()
	s.line(e, s.paint(terminal.Yellow, fmt.Sprintf("again in %s: %s", pause.Round(10*time.Millisecond),
		terminal.Printable(reason))))
}

// ended writes how a turn ended.
func (s *show) ended(t *client.Turn, err error) {
	outcome := outcomeOf(t, err)
	e := turnEvent(t, "turn_ended", "")
	e.Status = outcome
	if err != nil {
		e.Text = err.Error()
	}
	s.mu.Lock()
	sum := s.spent[t.Record.GetTurnId()]
	delete(s.spent, t.Record.GetTurnId())
	s.mu.Unlock()
	e.InputTokens, e.OutputTokens = sum[0], sum[1]
	colour := terminal.Green
	if err != nil {
		colour = terminal.Red
	}
	text := s.paint(colour, "── "+outcome) +
		s.paint(terminal.Dim, fmt.Sprintf(", %s, %d tokens in, %d out", terminal.Count(t.Rounds(), "round", "rounds"),
			sum[0], sum[1]))
	if err != nil {
		text += "\n   " + terminal.Printable(err.Error())
	}
	s.line(e, text)
}
