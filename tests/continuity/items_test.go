package continuity

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// work is an actor that does the items one after the other, each in a number of steps. Each step
// is a command that leaves a line, and is recorded as a todo.
func work(s sight, number int) move {
	id, objective := s.bound()
	n, known := s.left()
	switch {
	case id == "":
		return s.next()
	case s.over():
		return done
	case !known:
		return say("", steps(number))
	case s.did("UpdateWorkItem", fmt.Sprintf("%d steps left", n)) &&
		!s.did("UpdateWorkItem", fmt.Sprintf("%d steps left", number)):
		return done // one step a turn
	case n == 0:
		return say(objective+" is done.", complete())
	}
	line := fmt.Sprintf("echo %s %d >> steps", objective, n)
	if s.did("ExecCommand", line) || strings.Contains(s.section("What you did"), line) {
		return say("", steps(n-1))
	}
	return say("", run(line))
}

// Five items are done in their order, each with its report.
func TestC7_AQueueIsWorkedOff(t *testing.T) {
	objectives := []string{"One", "Two", "Three", "Four", "Five"}
	live(t, scenario{
		before: func(l *life) {
			for _, o := range objectives {
				l.create(o)
			}
		},
		actor: func(s sight) move {
			if _, objective := s.bound(); objective != "" {
				return s.finish(objective + " is done.")
			}
			return s.next()
		},
		check: func(l *life) {
			l.completed(objectives...)
			for _, o := range objectives {
				l.reported(o, o+" is done.")
			}
			l.order("One is done.", "Two is done.", "Three is done.", "Four is done.", "Five is done.")
		},
	})
}

// An item that takes several turns: each step is made once.
func TestC7_AnItemInSteps(t *testing.T) {
	live(t, scenario{
		before:   func(l *life) { l.create("Move house") },
		commands: true,
		actor:    func(s sight) move { return work(s, 3) },
		check: func(l *life) {
			l.completed("Move house")
			if l.k.what != "machine" { // a command that was interrupted is run again by this actor
				same(l, []string{"Move house 3", "Move house 2", "Move house 1"}, l.lines("steps"))
			}
		},
	})
}

// Two items take turns: after each step the agent picks the other one.
func TestC7_TwoItemsInterleaved(t *testing.T) {
	live(t, scenario{
		before: func(l *life) { l.create("Alpha"); l.create("Beta") },
		actor: func(s sight) move {
			id, objective := s.bound()
			n, known := s.left()
			other := map[string]string{"Alpha": "Beta", "Beta": "Alpha"}[objective]
			switch {
			case id == "":
				return s.next()
			case !known:
				return say("", steps(2))
			case s.did("UpdateWorkItem", "") && s.item(other) != "" && !s.did("PickWorkItem", s.item(other)):
				return say("",
					call("PickWorkItem", map[string]any{"work_item_id": s.item(other), "reason": "their turn"}))
			case s.did("UpdateWorkItem", ""), s.did("PickWorkItem", id) && s.did("PickWorkItem", s.item(other)):
				return done
			case n == 0:
				return s.finish(objective + " is done.")
			}
			return say("", steps(n-1))
		},
		check: func(l *life) {
			l.completed("Alpha", "Beta")
			l.reported("Alpha", "Alpha is done.")
			l.reported("Beta", "Beta is done.")
		},
	})
}

// A message asks for something apart from the work at hand: it becomes an item of its own, once,
// and both are done.
func TestC7_AMessageBecomesAnItem(t *testing.T) {
	const report, order = "Write the report", "Order coffee"
	live(t, scenario{
		before: func(l *life) { l.create(report) },
		actor: func(s sight) move {
			_, objective := s.bound()
			switch {
			case s.told("please order coffee"):
				if s.item(order) != "" || s.did("CreateWorkItem", order) {
					return done
				}
				return say("", create(order))
			case objective == "":
				return s.next()
			}
			return s.finish(objective + ": done")
		},
		outside: []step{
			{during: func(s sight) bool { return s.on(report) }, do: func(l *life) {
				l.say("please order coffee, " +
					"some day")
			}},
		},
		check: func(l *life) {
			l.completed(report, order)
			l.reported(order, order+": done")
		},
	})
}

// The operator changes the objective while the item is worked on.
func TestC7_AnObjectiveIsChanged(t *testing.T) {
	live(t, scenario{
		before: func(l *life) { l.create("Paint it red") },
		actor: func(s sight) move {
			_, objective := s.bound()
			n, known := s.left()
			switch {
			case objective == "":
				return s.next()
			case s.did("UpdateWorkItem", ""):
				return done
			case !known:
				return say("", steps(2))
			case n > 1:
				return say("", steps(n-1))
			}
			return s.finish("Done: " + objective)
		},
		outside: []step{{
			during: func(s sight) bool { n, known := s.left(); return known && n == 2 },
			do:     func(l *life) { l.change("Paint it red", "Paint it blue") },
		}},
		check: func(l *life) { l.reported("Paint it blue", "Done: Paint it blue") },
	})
}

// The agent writes a plan, and later turns follow it.
func TestC7_APlanIsFollowed(t *testing.T) {
	const item = "Bake a cake"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			id, _ := s.bound()
			head := s.section("Work item of this turn")
			switch {
			case id == "":
				return s.next()
			case s.did("HomeWrite", ""):
				return done
			case strings.Contains(head, "> Use three eggs."):
				return s.finish("Baked with three eggs.")
			}
			return say("I plan.",
				call("HomeWrite", map[string]any{"path": "work-items/" + id + "/plan.md", "text": "Use three eggs.\n"}))
		},
		check: func(l *life) { l.completed(item); l.reported(item, "Baked with three eggs.") },
	})
}

// A blocker with a time to look again: the agent looks then, and not before.
func TestC7_ABlockerIsRechecked(t *testing.T) {
	const item = "Renew the certificate"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			id, _ := s.bound()
			switch {
			case strings.Contains(s.message(), "recheck") && s.item(item) != "" && id == "":
				return say("", pick(s.item(item)))
			case id == "":
				return s.next()
			case strings.Contains(s.message(), "recheck"):
				return s.finish("Renewed at last.")
			case s.did("UpdateWorkItem", ""):
				return done
			}
			return say("", call("UpdateWorkItem", map[string]any{
				"blocked_by": "the authority is closed",
				"recheck_at": at(2 * time.Hour),
			}))
		},
		outside: []step{
			idle(hour), idle(func(l *life) { l.open(item) }), idle(func(l *life) { l.pass(2 * time.Hour) }),
		},
		check: func(l *life) { l.completed(item); l.reported(item, "Renewed at last.") },
	})
}

// Turns that get nowhere come to an end by themselves; a word of the operator makes the agent go
// on.
func TestC7_NoProgressUntilAWord(t *testing.T) {
	const item = "Solve the riddle"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			id, _ := s.bound()
			switch {
			case id == "":
				return s.next()
			case s.has(quoted("the answer is time")):
				return s.finish("It is time.")
			case s.did("GetWorkItem", ""):
				return done
			}
			return say("", call("GetWorkItem", nil))
		},
		outside: []step{idle(func(l *life) { l.stalled() }), idle(func(l *life) { l.say("the answer is time") })},
		check:   func(l *life) { l.completed(item); l.reported(item, "It is time.") },
	})
}

// The agent is stopped by the operator in the middle of a turn, and told to do something else.
func TestC7_ARunIsAborted(t *testing.T) {
	const item = "Paint the shed"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			id, _ := s.bound()
			_, begun := s.left()
			switch {
			case id == "" && s.told("not the shed") && s.item(item) != "":
				return say("", pick(s.item(item)))
			case id == "":
				return s.next()
			case s.has(quoted("not the shed, the barn")):
				return s.finish("The barn is painted.")
			case !begun:
				return say("", steps(1))
			case s.did("GetWorkItem", ""):
				return s.finish("The shed is painted.")
			}
			return say("", call("GetWorkItem", nil))
		},
		outside: []step{{
			during: func(s sight) bool { _, begun := s.left(); return begun },
			do:     func(l *life) { l.abort(); l.say("not the shed, the barn") },
		}, idle(func(l *life) { l.pause(false) })},
		check: func(l *life) { l.completed(item); l.reported(item, "The barn is painted.") },
	})
}

// An item takes many turns, with an operator who looks in now and then. Each turn knows the
// objective, what is left, and what was said last.
func TestC7_AnItemOverManyTurns(t *testing.T) {
	const item, days = "Move the service to the new cluster", 12
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			id, _ := s.bound()
			n, known := s.left()
			switch {
			case id == "":
				return s.next()
			case s.told("how far are you?"):
				return s.answer(fmt.Sprintf("%d parts are left.", n))
			case s.did("UpdateWorkItem", ""):
				return done
			case !known:
				return say("I begin with an inventory.", steps(days))
			case n > 0:
				return say(fmt.Sprintf("Part %d is understood: %s.", n, strings.Repeat("it depends on the part before ",
					6)), steps(n-1))
			}
			return s.finish("It is moved.")
		},
		outside: []step{
			{
				during: func(s sight) bool { n, known := s.left(); return known && n == 8 },
				do:     func(l *life) { l.say("Day 4: how far are you?") },
			},
			{
				during: func(s sight) bool { n, known := s.left(); return known && n == 3 },
				do:     func(l *life) { l.say("Day 9: how far are you?") },
			},
		},
		check: func(l *life) { l.completed(item); l.reported(item, "It is moved.") },
	})
}
