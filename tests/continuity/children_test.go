package continuity

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

// delegate spawns a child for the item of the turn, unless that was done before the turn was cut
// off, and waits for its result.
func delegate(s sight, text string) move {
	task := taskOfChild(s, text)
	switch {
	case task == "" && s.has("SpawnAgent: ") && !s.has("SpawnAgent: did not run"):
		return done // it has ended, and its result is on its way
	case task == "":
		return say("", call("SpawnAgent", map[string]any{"initial_message": text}))
	case s.did("WaitFor", task):
		return done
	}
	return say("", waitFor("task_result", "the child: "+text, "resource", task))
}

// taskOfChild returns the task of the child that was told a text, "" if there is none.
func taskOfChild(s sight, text string) string {
	if id := s.made("SpawnAgent", text, taskIDs); id != "" {
		return id
	}
	for line := range strings.Lines(s.section("Children that work for you")) {
		if strings.Contains(line, text) {
			return taskIDs.FindString(line)
		}
	}
	return ""
}

// itsItem is what a child does: it makes an item of what it was told, and completes that with a
// report.
func itsItem(s sight, objective, report string) move {
	switch {
	case s.on(objective):
		return s.finish(report)
	case s.item(objective) != "":
		return say("", pick(s.item(objective)))
	case strings.Contains(s.section("Completed recently"), objective), s.did("CompleteWorkItem", ""):
		return done
	}
	return say("", create(objective))
}

// A child does a part and reports; the parent goes on with what it says.
func TestA14_AChildReports(t *testing.T) {
	const item = "Have the door painted"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			switch {
			case s.on(item) && s.ended():
				return s.finish("The child says it is red: " + yes(s.has("The door is red.")))
			case s.on(item) && s.resumed() != "":
				return s.read()
			case s.on(item):
				return delegate(s, "Paint the door")
			}
			return s.next()
		},
		child: func(s sight) move { return itsItem(s, "paint the door", "The door is red.") },
		check: func(l *life) {
			l.reported(item, "The child says it is red: yes")
			l.delegated(1, 1)
		},
	})
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// painter is a child that asks for the colour before it paints.
func painter(s sight) move {
	const door = "paint the door"
	switch {
	case s.on(door) && s.kind("internal_followup") && s.has(quoted("Which colour?")):
		return s.finish("The door is " + quotedLine(s.message()) + ".")
	case s.on(door):
		return s.ask("Which colour?")
	case s.item(door) != "":
		return say("", pick(s.item(door)))
	case s.kind("delegation"):
		return say("", create(door))
	}
	return done
}

var asks = regexp.MustCompile(`\(task (tsk_[0-9a-z]+)`)

// reply answers the child whose question is the message of the turn, unless the turn did so
// before it was cut off.
func reply(s sight, text string) move {
	m := asks.FindStringSubmatch(s.message() + s.section("Children that work for you"))
	if m == nil || s.did("TaskInput", text) {
		return done
	}
	return say("", call("TaskInput", map[string]any{"task_id": m[1], "text": text}))
}

// A child asks while its parent waits for it. The parent asks the operator, passes the answer
// on, and gets the result.
func TestA14_AChildsQuestionReachesTheOperator(t *testing.T) {
	const item = "Have the door painted"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			switch {
			case s.on(item) && s.ended():
				return s.finish("Done: " + yes(s.has("The door is red.")))
			case s.kind("internal_followup"):
				return s.answer("The child asks for the colour.")
			case s.told("red, of course"):
				return reply(s, "red")
			case s.on(item) && s.resumed() != "":
				return s.read()
			case s.on(item):
				return delegate(s, "Paint the door")
			}
			return s.next()
		},
		child:   painter,
		outside: []step{idle(func(l *life) { l.say("red, of course") })},
		check:   func(l *life) { l.reported(item, "Done: yes") },
	})
}

// The parent knows the answer itself.
func TestA14_AParentAnswersItself(t *testing.T) {
	const item = "Have the door painted green"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			switch {
			case s.on(item) && s.ended():
				return s.finish("Done: " + yes(s.has("The door is green.")))
			case s.kind("internal_followup") && s.on(item):
				return reply(s, "green")
			case s.on(item) && s.resumed() != "":
				return s.read()
			case s.on(item):
				return delegate(s, "Paint the door")
			}
			return s.next()
		},
		child: painter,
		check: func(l *life) { l.reported(item, "Done: yes") },
	})
}

// Two children work at the same time; the parent waits for both.
func TestA14_TwoChildren(t *testing.T) {
	const item = "Have both painted"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			door, gate := taskOfChild(s, "Paint the door"), taskOfChild(s, "Paint the gate")
			open := s.section("Children that work for you")
			switch {
			case s.on(item) && s.ended() && open == "":
				return s.finish("Both are painted.")
			case s.on(item) && s.ended():
				return waits(s, "the other one", taskIDs.FindString(open))
			case s.on(item) && s.resumed() != "":
				return s.read()
			case s.on(item) && strings.Contains(s.section("Notes on it"), "Paint the gate") && open == "":
				return done // both have ended, and their results are on their way
			case s.on(item) && door == "":
				return say("", call("SpawnAgent", map[string]any{"initial_message": "Paint the door"}))
			case s.on(item) && gate == "":
				return say("", call("SpawnAgent", map[string]any{"initial_message": "Paint the gate"}))
			case s.on(item):
				return waits(s, "the door", door)
			}
			return s.next()
		},
		child: func(s sight) move {
			for _, what := range []string{"door", "gate"} {
				if s.has("Paint the "+what) || s.has("paint the "+what) {
					return itsItem(s, "paint the "+what, "The "+what+" is painted.")
				}
			}
			return done
		},
		check: func(l *life) {
			l.reported(item, "Both are painted.")
			l.delegated(1, 2) // it may finish after one if the turn was lost that would have delegated the other
		},
	})
}

// The operator has a child stopped that asks for too much; the parent finishes without it.
func TestA14_AChildIsStopped(t *testing.T) {
	const item = "Have the door painted"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			task := taskOfChild(s, "Paint the door")
			switch {
			case s.on(item) && s.ended():
				return s.finish("It is not painted.")
			case s.told("stop it") && task != "" && !s.called("TaskStop", task):
				return say("", call("TaskStop", map[string]any{"task_id": task}))
			case s.told("stop it"), s.kind("internal_followup"):
				return done
			case s.on(item) && s.resumed() != "":
				return s.read()
			case s.on(item):
				return delegate(s, "Paint the door")
			}
			return s.next()
		},
		child:   painter,
		outside: []step{idle(func(l *life) { l.say("stop it") })},
		check: func(l *life) {
			l.reported(item, "It is not painted.")
			l.delegated(1, 1)
		},
	})
}

// delegated requires that the keeper had at least and at most so many children, of each of which it was told the result
// once, for the item that it was made for, and that all of them are gone (SPEC A12.2).
func (l *life) delegated(least, most int) {
	l.t.Helper()
	var agents *agentv1.ListAgentsResponse
	var made *agentv1.ListDelegationsResponse
	var told *agentv1.ListMessagesResponse
	l.operator(func(ctx context.Context) (err error) {
		agents, err = l.w.Agents().ListAgents(ctx, &agentv1.ListAgentsRequest{PageSize: 500, IncludePrivate: true})
		if err == nil {
			made, err = l.w.Agents().ListDelegations(ctx, &agentv1.ListDelegationsRequest{
				AgentId: keeper, PageSize: 500,
			})
		}
		if err == nil {
			told, err = l.w.Agents().ListMessages(ctx, &agentv1.ListMessagesRequest{AgentId: keeper, PageSize: 500})
		}
		return err
	})
	require.Len(l.t, agents.GetAgents(), 1, "a child is left")
	n := len(made.GetDelegations())
	require.GreaterOrEqual(l.t, n, least)
	require.LessOrEqual(l.t, n, most)
	results := map[string]int{}
	for _, m := range told.GetMessages() {
		if m.GetKind() == agentv1.MessageKind_MESSAGE_KIND_TASK_RESULT {
			results[m.GetTaskId()+" for "+m.GetWorkItemId()]++
		}
	}
	require.Len(l.t, results, n)
	for _, d := range made.GetDelegations() {
		require.Equal(l.t, agentv1.DelegationState_DELEGATION_STATE_COMPLETED, d.GetState())
		require.Equal(l.t, 1, results[d.GetTaskId()+" for "+d.GetParentWorkItemId()], "%v", results)
	}
}
