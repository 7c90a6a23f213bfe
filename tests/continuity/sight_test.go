package continuity

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/pbjson"
)

// actor decides what a turn does next. It is a function of what it is shown: it keeps nothing
// between two calls.
type actor func(s sight) move

// move is one reply of the actor. A move without calls ends the turn.
type move struct {
	text  string
	calls []*agentv1.ToolCall
	// local is a tool of the runner's own, which the runner executes before it submits the reply.
	local *agentv1.ToolCall
	// summary sums up what was said before the message of the turn.
	summary string
}

func say(text string, calls ...*agentv1.ToolCall) move { return move{text: text, calls: calls} }

// done ends the turn without a word.
var done = move{}

// sight is what an actor knows: the context of its turn and what its turn did since, both as a
// model is shown them.
type sight struct {
	context string
	turn    string
}

// add adds a round to what the turn did.
func (s *sight) add(m move, results []*agentv1.ToolResult, interjected []*agentv1.Message) {
	var b strings.Builder
	fmt.Fprintf(&b, "You: %s\n", m.text)
	calls := m.calls
	if m.local != nil {
		calls = append([]*agentv1.ToolCall{m.local}, calls...)
	}
	for i, r := range results {
		body := object(r.GetResult())
		fmt.Fprintf(&b, "- %s %s\n  arguments: %s\n  result: %s\n", calls[i].GetName(), outcome(r), arguments(calls[i]),
			body)
	}
	for _, msg := range interjected {
		fmt.Fprintf(&b, "Operator interjects:\n> %s\n", msg.GetText())
	}
	s.turn += b.String()
}

func outcome(r *agentv1.ToolResult) string {
	status := strings.ToLower(strings.TrimPrefix(r.GetStatus().String(), "TOOL_STATUS_"))
	return status + ", " + r.GetSummaryText()
}

func arguments(c *agentv1.ToolCall) string { return object(c.GetArguments()) }

// object returns an object as JSON on one line.
func object(o *structpb.Struct) string {
	raw, err := pbjson.Append(nil, o)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// section returns a part of the context by the beginning of its heading, "" if it is not there.
func (s sight) section(title string) string {
	_, after, found := strings.Cut(s.context, "\n## "+title)
	if !found {
		return ""
	}
	if i := strings.Index(after, "\n## "); i >= 0 {
		after = after[:i+1]
	}
	return after
}

// has reports whether every part is somewhere in what the actor knows.
func (s sight) has(parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(s.context, p) && !strings.Contains(s.turn, p) {
			return false
		}
	}
	return true
}

// message returns the message of the turn with its heading.
func (s sight) message() string { return s.section("Message (") }

// told reports whether the message of the turn, or one that came during it, has a text.
func (s sight) told(text string) bool {
	return strings.Contains(s.message(), text) || strings.Contains(s.turn, "Operator interjects:\n> "+text)
}

// kind reports whether the message of the turn is of a kind.
func (s sight) kind(kind string) bool { return strings.HasPrefix(s.message(), kind+",") }

// operator reports whether the message of the turn may instruct.
func (s sight) operator() bool {
	heading, _, _ := strings.Cut(s.message(), "\n")
	return strings.Contains(heading, "operator_instruction")
}

// why returns why the turn is.
func (s sight) why() string { return s.section("Why this turn") }

var (
	itemIDs    = regexp.MustCompile(`wi_[0-9a-z]+`)
	taskIDs    = regexp.MustCompile(`tsk_[0-9a-z]+`)
	triggerIDs = regexp.MustCompile(`trg_[0-9a-z]+`)
)

// bound returns the id and the objective of the work item of the turn, "" for none. A pick or a
// completion since moved it.
func (s sight) bound() (id, objective string) {
	section := s.section("Work item of this turn")
	if id = itemIDs.FindString(section); id != "" {
		_, objective, _ = strings.Cut(section, "Objective: ")
		objective, _, _ = strings.Cut(objective, "\n")
	}
	for _, c := range s.calls(s.turn) {
		if c.tool == "PickWorkItem" && c.ok() {
			id = itemIDs.FindString(c.arguments)
			objective = s.objective(id)
		}
	}
	return id, objective
}

// on reports whether the turn is about the item with an objective.
func (s sight) on(objective string) bool {
	_, is := s.bound()
	return is == objective
}

// item returns the id of the open item with an objective, "" if none is shown.
func (s sight) item(objective string) string {
	quoted := regexp.QuoteMeta(objective)
	for _, re := range []string{`- (wi_[0-9a-z]+): ` + quoted + ` \[[^c]`, `\n(wi_[0-9a-z]+)\nObjective: ` + quoted +
		`\n`} {
		if m := regexp.MustCompile(re).FindStringSubmatch(s.context); m != nil {
			return m[1]
		}
	}
	for _, c := range s.calls(s.turn) {
		if c.tool == "CreateWorkItem" && c.ok() && strings.Contains(c.arguments, objective) {
			return itemIDs.FindString(c.result)
		}
	}
	return ""
}

func (s sight) objective(id string) string {
	if m := regexp.MustCompile(id + `(?:: |\nObjective: )([^\n\[]+?)(?: \[|\n)`).FindStringSubmatch(s.context); m !=
		nil {
		return m[1]
	}
	for _, c := range s.calls(s.turn) {
		if c.tool == "CreateWorkItem" && strings.Contains(c.result, id) {
			return field(c.arguments, "objective")
		}
	}
	return ""
}

// made is a call as the actor is shown it.
type made struct{ tool, outcome, arguments, result string }

func (c made) ok() bool { return strings.HasPrefix(c.outcome, "success") }

var madeCalls = regexp.MustCompile(
	`(?m)^- (?:trn_[0-9a-z]+/[0-9]+ )?([A-Za-z_]+):? ((?:success|error|outcome unknown|did not run|has no recorded)[^\n]*)\n(?:  arguments: ([^\n]*)\n)?(?:  result: ([^\n]*)\n?)?`)

// calls returns the calls that a text shows.
func (sight) calls(text string) (all []made) {
	for _, m := range madeCalls.FindAllStringSubmatch(text, -1) {
		all = append(all, made{m[1], m[2], m[3], m[4]})
	}
	return all
}

// call returns the newest call of a tool whose arguments have a part, made by this turn or by an
// earlier attempt at its message.
func (s sight) call(tool, part string) (made, bool) {
	all := append(s.calls(s.section("What was tried")), s.calls(s.turn)...)
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].tool == tool && strings.Contains(all[i].arguments, part) {
			return all[i], true
		}
	}
	return made{}, false
}

// did reports whether such a call succeeded.
func (s sight) did(tool, part string) bool {
	c, known := s.call(tool, part)
	return known && c.ok()
}

// called reports whether such a call ran, whatever came of it.
func (s sight) called(tool, part string) bool {
	c, known := s.call(tool, part)
	return known && !strings.HasPrefix(c.outcome, "did not run")
}

// failed reports whether such a call ran and did not succeed, or nobody knows.
func (s sight) failed(tool, part string) bool {
	c, _ := s.call(tool, part)
	return s.called(tool, part) && !c.ok()
}

// printed reports whether a command that succeeded printed a text.
func (s sight) printed(cmd, text string) bool {
	c, known := s.call("ExecCommand", cmd)
	return known && c.ok() && strings.Contains(field(c.result, "output"), text)
}

// made returns the id of what the newest such call made, if it succeeded: the result has it, or
// the summary where the result was lost.
func (s sight) made(tool, part string, ids *regexp.Regexp) string {
	c, _ := s.call(tool, part)
	if !c.ok() {
		return ""
	}
	return ids.FindString(c.outcome + c.result)
}

// field returns a string from JSON, which may be cut short, by its name.
func field(raw, name string) string {
	m := regexp.MustCompile(`"` + name + `":"((?:[^"\\]|\\.)*)"`).FindStringSubmatch(raw)
	if m == nil {
		return ""
	}
	var out string
	if err := json.Unmarshal([]byte(`"`+m[1]+`"`), &out); err != nil {
		return m[1]
	}
	return out
}

// call is a tool call.
func call(name string, args map[string]any) *agentv1.ToolCall {
	s, err := structpb.NewStruct(args)
	if err != nil {
		panic(err)
	}
	return &agentv1.ToolCall{Name: name, Arguments: s}
}

func pick(id string) *agentv1.ToolCall {
	return call("PickWorkItem", map[string]any{"work_item_id": id})
}

func waitFor(wake, reason string, more ...string) *agentv1.ToolCall {
	args := map[string]any{"wake": wake, "reason": reason}
	for i := 0; i < len(more); i += 2 {
		args[more[i]] = more[i+1]
	}
	return call("WaitFor", args)
}

func complete() *agentv1.ToolCall { return call("CompleteWorkItem", nil) }

func todos(texts ...string) *agentv1.ToolCall {
	list := make([]any, len(texts))
	for i, text := range texts {
		state, rest, found := strings.Cut(text, ": ")
		if !found {
			state, rest = "pending", text
		}
		list[i] = map[string]any{"text": rest, "state": state}
	}
	return call("UpdateWorkItem", map[string]any{"todo_list": list})
}

func run(cmd string) *agentv1.ToolCall { return call("ExecCommand", map[string]any{"cmd": cmd}) }

func start(cmd string) *agentv1.ToolCall {
	return call("ExecCommand", map[string]any{"cmd": cmd, "yield_time": "0s"})
}

func create(objective string) *agentv1.ToolCall {
	return call("CreateWorkItem", map[string]any{"objective": objective})
}

func quoted(s string) string { return fmt.Sprintf("> %s\n", s) }

// ask waits for an answer, unless the turn did so before it was cut off.
func (s sight) ask(question string) move {
	if s.did("WaitFor", question) {
		return done
	}
	return say("", waitFor("operator_input", question))
}

// over reports whether the item of the turn was completed before the turn was cut off.
func (s sight) over() bool {
	id, _ := s.bound()
	for _, c := range append(s.calls(s.section("What was tried")), s.calls(s.turn)...) {
		if c.tool == "CompleteWorkItem" && c.ok() && id != "" && strings.Contains(c.outcome, id) {
			return true
		}
	}
	return false
}

// finish completes the item of the turn with a report, unless the turn did so before it was cut
// off.
func (s sight) finish(report string) move {
	if s.over() {
		return done
	}
	return say(report, complete())
}

// answer says something, unless it was said before the turn was cut off.
func (s sight) answer(text string) move {
	if strings.Contains(s.section("Conversation"), quoted(text)) {
		return done
	}
	return say(text)
}

// next picks the item that is the first of those that are queued.
func (s sight) next() move {
	id, _ := s.bound()
	if first := itemIDs.FindString(s.section("Queued and runnable")); id == "" && first != "" {
		return say("", pick(first))
	}
	return done
}

// left returns how many steps of the item of the turn are left, by its todo "N steps left".
func (s sight) left() (n int, known bool) {
	for _, text := range []string{s.turn, s.section("Where it stands")} {
		all := stepsLeft.FindAllStringSubmatch(text, -1)
		if len(all) > 0 {
			n, err := strconv.Atoi(all[len(all)-1][1])
			return n, err == nil
		}
	}
	return 0, false
}

var stepsLeft = regexp.MustCompile(`([0-9]+) steps left`)

func steps(n int) *agentv1.ToolCall { return todos(fmt.Sprintf("%d steps left", n)) }

// resumed returns the task whose end lets an item go on although its result is not the message
// of the turn, "" if there is none.
func (s sight) resumed() string {
	_, after, found := strings.Cut(s.why(), "can go on: its wait for a task's result")
	if !found || s.kind("task_result") {
		return ""
	}
	return taskIDs.FindString(after)
}

// ended reports whether the actor knows the result of a task: it is the message of the turn, or
// was read.
func (s sight) ended() bool {
	return s.kind("task_result") || s.resumed() != "" && s.called("TaskOutput", s.resumed())
}

// read reads the result of the task that lets the item go on.
func (s sight) read() move {
	return say("", call("TaskOutput", map[string]any{"task_id": s.resumed()}))
}
