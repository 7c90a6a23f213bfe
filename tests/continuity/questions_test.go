package continuity

import "testing"

// A decision of the operator is asked for, and the answer of three words finds its item: the
// agent deploys where it was told to, once, whatever ends in between.
func TestC7_AQuestionIsAsked(t *testing.T) {
	const deploy = "Deploy release 1.4"
	live(t, scenario{
		before:   func(l *life) { l.create(deploy) },
		commands: true,
		actor: func(s sight) move {
			switch {
			case s.did("CompleteWorkItem", ""):
				return done
			case s.did("ExecCommand", "echo production"), s.printed("cat deployed", "production"):
				return say("Deployed to production.", complete())
			case s.failed("ExecCommand", "echo production") && !s.did("ExecCommand", "cat deployed"):
				return say("It was cut off; I look whether it came that far.", run("cat deployed; true"))
			case s.on(deploy) && s.told("the second one") && s.has(quoted("Staging or production?")):
				return say("", run("echo production >> deployed"))
			case s.on(deploy):
				return say("", waitFor("operator_input", "Staging or production?"))
			case s.item(deploy) != "" && s.has("pick_queued"):
				return say("", pick(s.item(deploy)))
			}
			return done
		},
		outside: []step{idle(func(l *life) { l.say("the second one") })},
		check: func(l *life) {
			l.completed(deploy)
			l.reported(deploy, "Deployed to production.")
			same(l, []string{"production"}, l.lines("deployed"))
		},
	})
}
