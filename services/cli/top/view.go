package top

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	fleetv1 "quartet/pkg/pb/quartet/fleet/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/agents"
	"quartet/services/cli/output"
	"quartet/services/cli/workitems"
)

// fleet is what was read about all agents.
type fleet struct {
	agents []*agentv1.Agent
	more   bool                         // there are more than were read
	counts *fleetv1.CountAgentsResponse // of all, if there are more
}

// detail is what was read about one agent.
type detail struct {
	agent   *agentv1.Agent
	queue   *workv1.GetWorkQueueResponse
	explain *schedulerv1.ExplainResponse
	tasks   []*taskv1.Task
}

// order is how the agents are sorted.
type order int

const (
	byPosture order = iota // what acts first, then what waits, then the rest
	byName
	byQueue // the longest lane first
	orders
)

// String returns the name that the screen shows.
func (o order) String() string { return [...]string{"posture", "name", "queued"}[o] }

// view is what the screen shows. Its methods neither read nor write anything else.
type view struct {
	address string
	utc     bool

	fleet   fleet
	loaded  bool
	problem string // why what is shown may be old; "" if it is not
	now     time.Time

	sort    order
	filter  string
	typing  bool   // keys go into the filter
	chosen  string // the id of the chosen agent
	first   int    // the first row that is shown
	inside  string // the id of the agent that is shown in detail; "": the list is shown
	detail  *detail
	scroll  int
	visible int // how many rows of the list or lines of the detail fit
}

// action is what has to be done after a key was pressed, beside drawing the view again.
type action int

const (
	nothing action = iota
	quit
	load // read again at once
)

// rows returns the agents that the filter accepts, in order.
func (v *view) rows() []*agentv1.Agent {
	var out []*agentv1.Agent
	for _, a := range v.fleet.agents {
		if v.filter == "" || strings.Contains(a.GetAgentId()+" "+pbjson.EnumText(a.GetPosture())+" "+
			strings.ToLower(a.GetPostureReason()), v.filter) {
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(a, b *agentv1.Agent) int {
		first := 0
		switch v.sort {
		case byPosture:
			first = cmp.Compare(rank(a.GetPosture()), rank(b.GetPosture()))
		case byQueue:
			first = cmp.Compare(b.GetLane().GetQueued(), a.GetLane().GetQueued())
		case byName, orders:
		}
		return cmp.Or(first, strings.Compare(a.GetAgentId(), b.GetAgentId()))
	})
	return out
}

// ranks has the postures in the order of byPosture, with their colours.
var ranks = []struct {
	posture agentv1.Posture
	colour  string
}{
	{agentv1.Posture_POSTURE_RUNNING_TURN, terminal.Green},
	{agentv1.Posture_POSTURE_QUEUED_INPUT, terminal.Cyan},
	{agentv1.Posture_POSTURE_RUNNABLE_WORK, terminal.Cyan},
	{agentv1.Posture_POSTURE_WAITING_OPERATOR, terminal.Yellow},
	{agentv1.Posture_POSTURE_WAITING_TASK, ""},
	{agentv1.Posture_POSTURE_WAITING_EXTERNAL, ""},
	{agentv1.Posture_POSTURE_BLOCKED, terminal.Red},
	{agentv1.Posture_POSTURE_PAUSED, terminal.Violet},
	{agentv1.Posture_POSTURE_STOPPED, terminal.Violet},
	{agentv1.Posture_POSTURE_IDLE, terminal.Dim},
}

// rank returns the place of a posture among ranks, or the place after the last one if it is not there.
func rank(p agentv1.Posture) int {
	for i, r := range ranks {
		if r.posture == p {
			return i
		}
	}
	return len(ranks)
}

// press changes the view as a key demands.
func (v *view) press(k key) action {
	if k == keyInterrupt {
		return quit
	}
	if v.typing {
		v.edit(k)
		if !v.typing && v.fleet.more {
			return load // the agents that the filter finds may not have been read
		}
		return nothing
	}
	if v.inside != "" {
		return v.pressInside(k)
	}
	rows := v.rows()
	at := v.index(rows)
	switch k {
	case 'q':
		return quit
	case keyUp, 'k':
		at--
	case keyDown, 'j':
		at++
	case keyPageUp:
		at -= max(v.visible, 1)
	case keyPageDown, ' ':
		at += max(v.visible, 1)
	case keyHome, 'g':
		at = 0
	case keyEnd, 'G':
		at = len(rows) - 1
	case '/':
		v.typing = true
	case keyEscape:
		v.filter = ""
	case 's':
		v.sort = (v.sort + 1) % orders
		return nothing // the chosen agent stays chosen
	case 'r':
		return load
	case keyEnter:
		if len(rows) > 0 {
			v.inside, v.detail, v.scroll = rows[at].GetAgentId(), nil, 0
			return load
		}
	default: // any other key
	}
	if len(rows) > 0 {
		v.chosen = rows[min(max(at, 0), len(rows)-1)].GetAgentId()
	}
	return nothing
}

// edit changes the filter as a key demands.
func (v *view) edit(k key) {
	const longest = 64
	switch {
	case k == keyEnter:
		v.typing = false
	case k == keyEscape:
		v.typing, v.filter = false, ""
	case k == keyBackspace && v.filter != "":
		v.filter = v.filter[:len(v.filter)-1]
	case k >= ' ' && k < 0x7f && len(v.filter) < longest:
		v.filter += strings.ToLower(string(rune(k)))
	}
}

// pressInside is press while one agent is shown.
func (v *view) pressInside(k key) action {
	switch k {
	case 'q', keyEscape, keyBackspace:
		v.inside, v.detail = "", nil
		return load
	case keyUp, 'k':
		v.scroll--
	case keyDown, 'j':
		v.scroll++
	case keyPageUp:
		v.scroll -= max(v.visible, 1)
	case keyPageDown, ' ':
		v.scroll += max(v.visible, 1)
	case keyHome, 'g':
		v.scroll = 0
	case keyEnd, 'G':
		v.scroll = 1 << 20 // lines bounds it
	case 'r':
		return load
	default: // any other key
	}
	v.scroll = max(v.scroll, 0)
	return nothing
}

// index returns the row of the chosen agent; 0 if it is not among the rows.
func (v *view) index(rows []*agentv1.Agent) int {
	return max(slices.IndexFunc(rows, func(a *agentv1.Agent) bool { return a.GetAgentId() == v.chosen }), 0)
}

// lines returns the picture.
func (v *view) lines(columns, rows int) []string {
	body := max(rows-4, 1) // without the head, the title, an empty line and the foot
	var title string
	var shown []string
	var foot string
	if v.inside != "" {
		title, shown = terminal.Paint(terminal.Bold, terminal.Printable(v.inside)), v.linesInside(columns)
		v.visible = body
		v.scroll = min(v.scroll, max(len(shown)-body, 0))
		shown = shown[v.scroll:]
		foot = "↑↓ scroll   r read again   esc back   ^C quit"
	} else {
		title, shown = v.list(columns, body)
		foot = "↑↓ choose   enter show   / filter   s sort: " + v.sort.String() + "   r read again   q quit"
	}
	out := append([]string{v.head(), title}, shown[:min(len(shown), body)]...)
	for len(out) < rows-1 {
		out = append(out, "")
	}
	switch {
	case v.typing:
		foot = "filter: " + v.filter + "█   enter keep   esc clear"
	case v.problem != "":
		foot = terminal.Paint(terminal.Red, terminal.Printable(v.problem))
	case v.filter != "" && v.inside == "":
		foot = "filter: " + v.filter + "   esc clear   " + foot
	}
	return append(out[:min(len(out), max(rows-1, 0))], foot)
}

// head counts the agents by posture.
func (v *view) head() string {
	if !v.loaded {
		return "quartet top  " + terminal.Printable(v.address) + "  reading…"
	}
	counts := map[agentv1.Posture]int{}
	for _, a := range v.fleet.agents {
		counts[a.GetPosture()]++
	}
	number := terminal.Count(len(v.fleet.agents), "agent", "agents")
	switch all := v.fleet.counts; {
	case all != nil:
		number = fmt.Sprintf("%d of %s", len(v.fleet.agents), terminal.Count(all.GetAgents(), "agent", "agents"))
		if all.GetIncomplete() {
			number += " so far"
		}
		clear(counts)
		for _, c := range all.GetPostures() {
			counts[c.GetPosture()] = int(c.GetAgents())
		}
	case v.fleet.more:
		number = "the first " + number
	case len(v.fleet.agents) == 1:
		number = "1 agent"
	}
	parts := []string{"quartet top  " + terminal.Printable(v.address) + "  " + number}
	for _, r := range ranks {
		if n := counts[r.posture]; n > 0 {
			text := fmt.Sprintf("%d %s", n, pbjson.EnumText(r.posture))
			if r.colour != "" {
				text = terminal.Paint(r.colour, text)
			}
			parts = append(parts, text)
		}
	}
	at := v.now.Local().Format(time.TimeOnly)
	if v.utc {
		at = v.now.UTC().Format(time.TimeOnly) + "Z"
	}
	return strings.Join(append(parts, at), "  ")
}

// header has the titles of the cells of row.
var header = []string{"AGENT", "POSTURE", "CONTROL", "QUEUED", "FOCUS", "WHY"}

// row returns the cells of an agent.
func row(a *agentv1.Agent) []string {
	const longest = 40
	return []string{
		output.Shorten(a.GetAgentId(), longest), pbjson.EnumText(a.GetPosture()), control(a),
		output.Number(a.GetLane().GetQueued()), a.GetCurrentWorkItemId(), output.Flexible(a.GetPostureReason()),
	}
}

// control returns the text of an agent's control, such as "paused"; "" if it was not read.
func control(a *agentv1.Agent) string {
	if a.GetControl() == agentv1.Control_CONTROL_UNSPECIFIED {
		return ""
	}
	return pbjson.EnumText(a.GetControl())
}

// list returns the title and the rows of the list, at most room of them, with the chosen one among them.
func (v *view) list(columns, room int) (title string, out []string) {
	rows := v.rows()
	at := v.index(rows)
	v.visible = room
	v.first = min(max(v.first, at-room+1), at)
	v.first = max(min(v.first, len(rows)-room), 0)
	var text bytes.Buffer
	p := output.New(&text).WithColumns(columns)
	cells := make([][]string, 0, room)
	part := rows[v.first:min(v.first+room, len(rows))]
	for _, a := range part {
		cells = append(cells, row(a))
	}
	empty := "no agents; create one with: quartet agent spawn NAME"
	switch {
	case !v.loaded:
		empty = ""
	case v.filter != "":
		empty = "no agent matches the filter"
	}
	p.Table(empty, header, cells)
	lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
	if len(part) == 0 {
		return "", lines
	}
	for i, line := range lines[1:] {
		switch a := part[i]; {
		case v.first+i == at:
			line = "\x1b[7m" + line + strings.Repeat(" ", max(columns-output.Width(line), 0)) + plain
		case rank(a.GetPosture()) < len(ranks) && ranks[rank(a.GetPosture())].colour != "":
			line = terminal.Paint(ranks[rank(a.GetPosture())].colour, line)
		}
		out = append(out, line)
	}
	return terminal.Paint(terminal.Bold, lines[0]), out
}

// linesInside returns everything about the agent that is shown.
func (v *view) linesInside(columns int) []string {
	d := v.detail
	if d == nil {
		return []string{"reading…"}
	}
	var text bytes.Buffer
	p := output.NewColoured(&text).WithColumns(columns).InUTC(v.utc)
	p.Fields("posture", terminal.Printable(pbjson.EnumText(d.agent.GetPosture())+
		output.Detail(d.agent.GetPostureReason())),
		"control", terminal.Printable(pbjson.EnumText(d.agent.GetControl())+output.Detail(d.agent.GetControlReason())),
		"turn", d.agent.GetCurrentTurnId(), "lane", fmt.Sprintf("%d queued, %d quarantined", d.agent.GetLane().
			GetQueued(), d.agent.GetLane().GetQuarantined()))
	p.Printf("\n")
	if d.explain != nil {
		agents.WriteExplanation(p, d.explain)
		p.Printf("\n")
	}
	if len(d.tasks) > 0 {
		p.Printf("%s\n", p.Paint(terminal.Bold, "Tasks"))
		for _, t := range d.tasks {
			p.Printf("  %s  %s  %s\n", t.GetTaskId(), pbjson.EnumText(t.GetState()),
				output.Shorten(t.GetLabel(), max(columns-50, 20)))
		}
		p.Printf("\n")
	}
	if d.queue != nil {
		workitems.DrawQueue(p, d.agent.GetAgentId(), d.queue, v.now)
	}
	return strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
}
