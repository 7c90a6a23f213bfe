package continuity

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// A second message refers to the first.
func TestC7_ASecondMessageRefersToTheFirst(t *testing.T) {
	live(t, scenario{
		actor: func(s sight) move {
			switch {
			case s.told("Which colour did I name?"):
				if s.has(quoted("My favourite colour is teal.")) {
					return s.answer("Teal.")
				}
				return s.answer("I do not know.")
			case s.told("favourite"):
				return s.answer("Noted.")
			}
			return done
		},
		outside: []step{
			idle(func(l *life) { l.say("My favourite colour is teal.") }),
			idle(func(l *life) { l.say("Which colour did I name?") }),
		},
		check: func(l *life) { l.order("Noted.", "Teal.") },
	})
}

var question = regexp.MustCompile(`question ([0-9]+)`)

// Ten messages in a row are answered in their order, once each, and each knows how many were
// before it.
func TestC7_TenMessagesAtOnce(t *testing.T) {
	live(t, scenario{
		before: func(l *life) {
			for i := range 10 {
				l.say(fmt.Sprint("question ", i))
			}
		},
		actor: func(s sight) move {
			m := question.FindStringSubmatch(s.message())
			if m == nil {
				return done
			}
			answer := fmt.Sprintf("answer %s, after %d others", m[1],
				len(question.FindAllString(s.section("Conversation"), -1)))
			return s.answer(answer)
		},
		check: func(l *life) {
			var want []string
			for i := range 10 {
				want = append(want, fmt.Sprintf("answer %d, after %d others", i, i))
			}
			same(l, want, l.said())
		},
	})
}

// What was said so long ago that no context shows it is found by its words.
func TestC7_SomethingSaidLongAgo(t *testing.T) {
	live(t, scenario{
		actor: func(s sight) move {
			switch {
			case s.told("What is the code word?") && s.has("The code word is"):
				_, word, _ := strings.Cut(s.context+s.turn, "The code word is ")
				return s.answer("It is " + word[:strings.IndexAny(word, ".\n")] + ".")
			case s.told("What is the code word?") && s.has("ReadConversation"):
				return say("", call("ReadConversation", map[string]any{"contains": "code word is"}))
			case s.operator():
				return s.answer("Noted: " + firstWords(s.message()))
			}
			return done
		},
		outside: append(lecture(14, "The code word is heron."),
			idle(func(l *life) { l.say("What is the code word?") })),
		check: func(l *life) {
			said := l.said()
			same(l, []string{"It is heron."}, said[len(said)-1:])
		},
	})
}

// The conversation is summed up in the middle. What the summary says is known long after the
// words themselves are left out.
func TestC7_ACompactionInTheMiddle(t *testing.T) {
	live(t, scenario{
		actor: func(s sight) move {
			said := s.section("Conversation")
			switch {
			case s.told("What is the code word?") && strings.Contains(said, "the code word is heron"):
				return s.answer("It is heron.")
			case s.told("Sum it up.") && strings.Contains(said, "The code word is heron.") &&
				!strings.Contains(said, "Summed up."):
				return move{text: "Summed up.", summary: "Two chapters; the code word is heron."}
			case s.told("Sum it up."), !s.operator():
				return done
			case s.told("What is the code word?"):
				return s.answer("I do not know.")
			}
			return s.answer("Noted: " + firstWords(s.message()))
		},
		outside: append(append(lecture(2, "The code word is heron."), idle(func(l *life) { l.say("Sum it up.") })),
			append(lecture(8, ""), idle(func(l *life) { l.say("What is the code word?") }))...),
		check: func(l *life) { l.order("Summed up.", "It is heron.") },
	})
}

// firstWords returns the first words of a message.
func firstWords(message string) string {
	_, text, _ := strings.Cut(message, "> ")
	return strings.Join(strings.Fields(text)[:3], " ")
}

// lecture is a number of long messages, of which the first one begins with a text.
func lecture(n int, text string) (all []step) {
	for i := range n {
		said := fmt.Sprintf("Chapter %d of many. %s%s", i, text, strings.Repeat(" And so it goes on, at length.", 40))
		text = ""
		all = append(all, idle(func(l *life) { l.say(said) }))
	}
	return all
}

// An operator changes their mind while the agent works.
func TestC7_AChangeOfMindDuringATurn(t *testing.T) {
	const item = "Paint the wall"
	live(t, scenario{
		before: func(l *life) { l.create(item) },
		actor: func(s sight) move {
			_, prepared := s.left()
			switch {
			case s.on(item) && !prepared:
				return say("I prepare.", steps(1))
			case s.on(item) && !s.did("GetWorkItem", "") && !s.has("use blue instead"):
				return say("I look again.", call("GetWorkItem", nil))
			case s.on(item) && s.has("use blue instead"):
				return s.finish("The wall is blue.")
			case s.on(item):
				return s.finish("The wall is red.")
			case s.told("use blue instead") && s.item(item) != "":
				return say("", pick(s.item(item)))
			}
			return s.next()
		},
		outside: []step{{
			during: func(s sight) bool { _, prepared := s.left(); return s.on(item) && prepared },
			do:     func(l *life) { l.interject("use blue instead") },
		}},
		check: func(l *life) { l.completed(item); l.reported(item, "The wall is blue.") },
	})
}

// Messages that came while the agent was paused are all dealt with after it.
func TestC7_MessagesToAPausedAgent(t *testing.T) {
	live(t, scenario{
		actor: func(s sight) move {
			if s.operator() {
				return s.answer("Noted: " + firstWords(s.message()))
			}
			return done
		},
		outside: []step{
			idle(func(l *life) { l.pause(true) }),
			idle(func(l *life) { l.say("one of three"); l.say("two of three"); l.say("three of three") }),
			idle(bounce),
			idle(func(l *life) { l.pause(false) }),
		},
		check: func(l *life) {
			same(l, []string{"Noted: one of three", "Noted: two of three", "Noted: three of three"}, l.said())
		},
	})
}

// What an operator says about an item is known to the turns of that item, and not forgotten
// over the turns of another.
func TestC7_AnInstructionIsKeptForItsItem(t *testing.T) {
	const site, shop = "Build the site", "Build the shop"
	live(t, scenario{
		before: func(l *life) { l.create(site); l.create(shop) },
		actor: func(s sight) move {
			n, known := s.left()
			_, objective := s.bound()
			switch {
			case s.operator() && s.told("only in German"):
				return s.answer("Understood.")
			case objective == "":
				return s.next()
			case s.did("UpdateWorkItem", ""):
				return done
			case !known:
				return say("", steps(2))
			case n > 1:
				return say("", steps(n-1))
			case s.has(quoted("only in German")):
				return s.finish(objective + ": in German")
			}
			return s.finish(objective + ": in English")
		},
		outside: []step{{
			during: func(s sight) bool { return s.on(site) },
			do:     func(l *life) { l.answer(shop, "only in German") },
		}},
		check: func(l *life) {
			l.completed(site, shop)
			l.reported(site, site+": in English")
			l.reported(shop, shop+": in German")
		},
	})
}
