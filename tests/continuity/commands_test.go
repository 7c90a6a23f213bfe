package continuity

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// mailer has tools of the runner's own: one that sends, and one that looks at what was sent.
var mailer = map[string]func(l *life, args map[string]any) string{
	"SendMail": func(l *life, args map[string]any) string {
		l.mails = append(l.mails, fmt.Sprint(args["to"]))
		return "sent"
	},
	"ListSent": func(l *life, _ map[string]any) string { return strings.Join(l.mails, ", ") },
}

// send sends a mail with the runner's tool. If an earlier attempt was cut off while it sent, and
// nobody knows whether it did, it looks before it sends.
func send(s sight, to string) move {
	looked, known := s.call("ListSent", to)
	switch {
	case s.did("SendMail", to), known && strings.Contains(looked.result, to):
		return done
	case s.failed("SendMail", to) && !known:
		return move{text: "I look whether it was sent.", local: call("ListSent", map[string]any{"for": to})}
	}
	return move{text: "I send it.", local: call("SendMail", map[string]any{"to": to})}
}

// A mail is sent once, although its runner may be lost before, while and after it sends it.
func TestC8_AMailIsSentOnce(t *testing.T) {
	live(t, scenario{
		local: mailer,
		actor: func(s sight) move {
			if !s.told("Send the mail to Ada") {
				return done
			}
			if m := send(s, "Ada"); m.local != nil {
				return m
			}
			return s.answer("It is sent.")
		},
		outside: []step{idle(func(l *life) { l.say("Send the mail to Ada.") })},
		check:   func(l *life) { same(l, []string{"Ada"}, l.mails); l.order("It is sent.") },
	})
}

// Two mails of one item, in two turns, and the item's todo tells which is left.
func TestC8_TwoMailsOfAnItem(t *testing.T) {
	const item = "Invite both"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		local:  mailer,
		actor: func(s sight) move {
			id, _ := s.bound()
			n, known := s.left()
			switch {
			case id == "":
				return s.next()
			case s.over():
				return done
			case !known:
				return say("", steps(2))
			case n == 0:
				return say("Both are invited.", complete())
			}
			to := []string{"Grace", "Ada"}[n-1]
			if m := send(s, to); m.local != nil && !strings.Contains(s.section("What you did"), to) {
				return m
			}
			return say("", steps(n-1))
		},
		check: func(l *life) { same(l, []string{"Ada", "Grace"}, l.mails); l.completed(item) },
	})
}

// The result of a command reaches the item that started it, whatever is in focus by then.
func TestC7_AResultForAnotherItem(t *testing.T) {
	const build, docs = "Build it", "Write the docs"
	live(t, scenario{
		before:   func(l *life) { l.create(build); l.create(docs) },
		commands: true,
		actor: func(s sight) move {
			task := taskOf(s, "built")
			switch {
			case s.on(build) && strings.Contains(s.message(), "interrupted"):
				return s.finish("It was interrupted.")
			case s.on(build) && s.ended():
				return s.finish("It is built.")
			case s.on(build) && s.failed("ExecCommand", "built"):
				return s.finish("It was interrupted.")
			case s.on(build) && s.resumed() != "":
				return s.read()
			case s.on(build) && task == "":
				return say("", start(await("go", "echo built")))
			case s.on(build):
				return waits(s, "the build", task)
			case s.on(docs) && s.told("publish"):
				return s.finish("The docs are published.")
			case s.on(docs):
				return s.ask("May I publish?")
			}
			return s.next()
		},
		outside: []step{idle(func(l *life) { l.release("go") }), idle(func(l *life) { l.say("publish") })},
		check: func(l *life) {
			l.completed(build, docs)
			if l.k.what != "machine" {
				l.reported(build, "It is built.")
			}
			l.reported(docs, "The docs are published.")
		},
	})
}

// taskOf returns the task of a command, as this turn or an earlier attempt started it, or as the
// context lists it among those that run.
func taskOf(s sight, part string) string {
	if id := s.made("ExecCommand", part, taskIDs); id != "" {
		return id
	}
	for line := range strings.Lines(s.section("Tasks that run")) {
		if strings.Contains(line, part) {
			return taskIDs.FindString(line)
		}
	}
	return ""
}

// waits waits for a task's result, unless the turn did so before it was cut off.
func waits(s sight, reason, task string) move {
	if s.did("WaitFor", task) {
		return done
	}
	return say("", waitFor("task_result", reason, "resource", task))
}

// A command fails, and the agent mends what it needed.
func TestC7_ACommandFails(t *testing.T) {
	const item = "Run the checks"
	live(t, scenario{
		before:   func(l *life) { l.create(item) },
		commands: true,
		actor: func(s sight) move {
			id, _ := s.bound()
			first, ran := s.call("ExecCommand", "first check")
			switch {
			case id == "":
				return s.next()
			case s.over():
				return done
			case s.did("ExecCommand", "second check"):
				return say("The checks pass.", complete())
			case s.did("ExecCommand", "touch fixed"):
				return say("", run("[ -e fixed ] && echo second check"))
			case ran && (strings.Contains(first.outcome, "exit code 1") ||
				strings.Contains(first.outcome, "interrupted")):
				return say("", run("touch fixed"))
			}
			return say("", run("[ -e fixed ] && echo first check"))
		},
		check: func(l *life) { l.completed(item) },
	})
}

// Two commands end in the other order than they are waited for.
func TestC7_TwoCommandsOutOfOrder(t *testing.T) {
	const item = "Build both"
	live(t, scenario{
		before:   func(l *life) { l.create(item) },
		commands: true,
		actor: func(s sight) move {
			left, right := taskOf(s, "left is built"), taskOf(s, "right is built")
			result := s.ended()
			switch {
			case s.over():
				return done
			case s.on(item) && result && s.section("Tasks that run") == "":
				return say("Both are over.", complete())
			case s.on(item) && result:
				return waits(s, "the other one", taskIDs.FindString(s.section("Tasks that run")))
			case s.on(item) && s.resumed() != "":
				return s.read()
			case s.on(item) && left == "" && !s.failed("ExecCommand", "left is built"):
				return say("", start(await("left", "echo left is built")))
			case s.on(item) && right == "" && !s.failed("ExecCommand", "right is built"):
				return say("", start(await("right", "echo right is built")))
			case s.on(item) && s.section("Tasks that run") == "" && (s.failed("ExecCommand", "right is built") ||
				s.failed("ExecCommand", "left is built")):
				return say("Both are over.", complete())
			case s.on(item):
				return waits(s, "the left one", left)
			}
			return s.next()
		},
		outside: []step{idle(func(l *life) { l.release("right") }), idle(func(l *life) { l.release("left") })},
		check: func(l *life) {
			l.completed(item)
			if l.k.what != "machine" {
				same(l, 2, len(l.tasks()))
			}
		},
	})
}

// The operator has a command stopped that the agent waits for.
func TestC7_ACommandIsStopped(t *testing.T) {
	const item = "Count the stars"
	live(t, scenario{
		before:   func(l *life) { l.create(item) },
		commands: true,
		actor: func(s sight) move {
			task := taskOf(s, "counted")
			switch {
			case s.over():
				return done
			case s.on(item) && (s.ended() || s.failed("ExecCommand", "counted")):
				return say("It was ended.", complete())
			case s.told("that is enough") && task != "" && !s.called("TaskStop", task):
				return say("", call("TaskStop", map[string]any{"task_id": task}))
			case s.told("that is enough"):
				return done
			case s.on(item) && s.resumed() != "":
				return s.read()
			case s.on(item) && task == "":
				return say("", start(await("never", "echo counted")))
			case s.on(item):
				return waits(s, "the count", task)
			}
			return s.next()
		},
		outside: []step{idle(func(l *life) { l.say("that is enough") })},
		check: func(l *life) {
			l.completed(item)
			same(l, 0, len(l.running(true)))
		},
	})
}

// A day of the release keeper: several items, of which each needs something else, and reports
// that say what was done.
func TestC7_ADayOfSeveralItems(t *testing.T) {
	const (
		check  = "Run the checks of today"
		ask    = "Ask for the version"
		notify = "Tell Ada"
	)
	live(t, scenario{
		before:   func(l *life) { l.create(check); l.create(ask); l.create(notify) },
		commands: true,
		local:    mailer,
		actor: func(s sight) move {
			switch {
			case s.over():
				return done
			case s.on(check) && (s.did("ExecCommand", "checked") || s.failed("ExecCommand", "checked")):
				return say("Checked.", complete())
			case s.on(check):
				return say("", run("echo checked >> checks"))
			case s.on(ask) && s.told("1.4"):
				return say("It is 1.4.", complete())
			case s.on(ask):
				return s.ask("Which version?")
			case s.on(notify):
				if m := send(s, "Ada"); m.local != nil && !strings.Contains(s.section("What you did"), "SendMail") {
					return m
				}
				return say("Ada knows.", complete())
			}
			return s.next()
		},
		outside: []step{idle(func(l *life) { l.say("1.4") })},
		check: func(l *life) {
			l.completed(check, ask, notify)
			l.reported(ask, "It is 1.4.")
			same(l, []string{"Ada"}, l.mails)
			if l.k.what != "machine" {
				same(l, []string{"checked"}, slices.Compact(l.lines("checks")))
			}
		},
	})
}
