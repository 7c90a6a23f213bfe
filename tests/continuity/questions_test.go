package continuity

import (
	"strings"
	"testing"
)

// A decision of the operator is asked for, and the answer of three words finds its item: the
// agent deploys where it was told to, once, whatever ends in between.
func TestC7_AQuestionIsAsked(t *testing.T) {
	const deploy = "Deploy release 1.4"
	live(t, scenario{
		before:   func(l *life) { l.create(deploy) },
		commands: true,
		actor: func(s sight) move {
			switch {
			case s.over():
				return done
			case !s.on(deploy):
				return s.next()
			case s.did("ExecCommand", "echo production"), s.printed("cat deployed", "production"):
				return say("Deployed to production.", complete())
			case s.failed("ExecCommand", "echo production") && !s.did("ExecCommand", "cat deployed"):
				return say("It was cut off; I look whether it came that far.", run("cat deployed; true"))
			case s.told("the second one") && s.has(quoted("Staging or production?")):
				return say("", run("echo production >> deployed"))
			}
			return s.ask("Staging or production?")
		},
		outside: []step{idle(func(l *life) { l.say("the second one") })},
		check: func(l *life) {
			l.completed(deploy)
			l.reported(deploy, "Deployed to production.")
			same(l, []string{"production"}, l.lines("deployed"))
		},
	})
}

// Two items wait for a colour each. The answers come in the other order, each about its item.
func TestC7_AnswersFindTheirItems(t *testing.T) {
	const door, fence = "Paint the door", "Paint the fence"
	live(t, scenario{
		before: func(l *life) { l.create(door); l.create(fence) },
		actor: func(s sight) move {
			_, objective := s.bound()
			switch {
			case objective != "" && s.told("red"):
				return s.finish(objective + ": red")
			case objective != "" && s.told("green"):
				return s.finish(objective + ": green")
			case objective != "":
				return s.ask("Which colour? " + objective)
			}
			return s.next()
		},
		outside: []step{
			idle(func(l *life) { l.answer(fence, "green") }),
			idle(func(l *life) { l.answer(door, "red") }),
		},
		check: func(l *life) {
			l.completed(door, fence)
			l.reported(door, door+": red")
			l.reported(fence, fence+": green")
		},
	})
}

// An agent that does not know what to begin with asks for itself, not for an item, and does what
// it is told.
func TestC7_AQuestionAboutNoItem(t *testing.T) {
	live(t, scenario{
		before: func(l *life) { l.create("Alpha"); l.create("Beta") },
		actor: func(s sight) move {
			_, objective := s.bound()
			switch {
			case objective != "":
				return s.finish(objective + " is done.")
			case s.told("begin with Beta") && s.has(quoted("Which one first?")) && s.item("Beta") != "":
				return say("", pick(s.item("Beta")))
			case s.has(quoted("begin with Beta")):
				return s.next()
			case strings.Contains(s.section("What you wait for, beside your work items"), "Which one first?"):
				return done
			}
			return s.ask("Which one first?")
		},
		outside: []step{idle(func(l *life) { l.say("begin with Beta") })},
		check: func(l *life) {
			l.completed("Alpha", "Beta")
			l.order("Beta is done.", "Alpha is done.")
		},
	})
}

// The server is restarted between a question and its answer.
func TestC7_AnAnswerAfterARestart(t *testing.T) {
	const item = "Choose a name"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			switch {
			case s.on(item) && s.told("Quintet") && s.has(quoted("Which name?")):
				return s.finish("Its name is Quintet.")
			case s.on(item):
				return s.ask("Which name?")
			}
			return s.next()
		},
		outside: []step{idle(bounce), idle(func(l *life) { l.say("Quintet") }), idle(bounce)},
		check: func(l *life) {
			l.completed(item)
			l.reported(item, "Its name is Quintet.")
		},
	})
}

// The answer comes while the agent works on something else, which goes on afterwards.
func TestC7_AnAnswerDuringOtherWork(t *testing.T) {
	const deploy, tidy = "Deploy release 1.4", "Tidy the change log"
	live(t, scenario{
		before: func(l *life) { l.create(deploy); l.create(tidy) },
		actor: func(s sight) move {
			n, known := s.left()
			switch {
			case s.on(deploy) && s.told("the second one") && s.has(quoted("Staging or production?")):
				return s.finish("Deployed to production.")
			case s.on(deploy) && s.did("WaitFor", ""):
				return done
			case s.on(deploy):
				return s.ask("Staging or production?")
			case s.on(tidy) && s.did("UpdateWorkItem", ""):
				return done
			case s.on(tidy) && !known:
				return say("", steps(3))
			case s.on(tidy) && n > 1:
				return say("", steps(n-1))
			case s.on(tidy):
				return s.finish("The change log is tidy.")
			}
			return s.next()
		},
		outside: []step{{
			during: func(s sight) bool { n, _ := s.left(); return s.on(tidy) && n == 2 },
			do:     func(l *life) { l.say("the second one") },
		}},
		check: func(l *life) {
			l.completed(deploy, tidy)
			l.reported(deploy, "Deployed to production.")
		},
	})
}

// An answer raises another question; the last answer alone says too little.
func TestC7_AnAnswerNeedsAnother(t *testing.T) {
	const item = "Paint the gate"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			switch {
			case s.on(item) && s.told("dark") && s.has(quoted("the green one")):
				return s.finish("It is dark green.")
			case s.on(item) && s.told("the green one"):
				return s.ask("Light or dark?")
			case s.on(item):
				return s.ask("Which colour?")
			}
			return s.next()
		},
		outside: []step{idle(func(l *life) { l.say("the green one") }), idle(func(l *life) { l.say("dark") })},
		check:   func(l *life) { l.completed(item); l.reported(item, "It is dark green.") },
	})
}

// The operator gives up what the agent waits for.
func TestC7_AWaitIsGivenUp(t *testing.T) {
	live(t, scenario{
		before: func(l *life) { l.create("Order paper"); l.create("Order ink") },
		actor: func(s sight) move {
			_, objective := s.bound()
			switch {
			case objective != "" && s.told("drop it"):
				return s.finish("Dropped, as you said.")
			case objective != "" && s.told("yes"):
				return s.finish("Ordered.")
			case objective != "":
				return s.ask("May I? " + objective)
			}
			return s.next()
		},
		outside: []step{
			idle(func(l *life) { l.answer("Order paper", "drop it") }),
			idle(func(l *life) { l.answer("Order ink", "yes") }),
		},
		check: func(l *life) {
			l.reported("Order paper", "Dropped, as you said.")
			l.reported("Order ink", "Ordered.")
		},
	})
}
