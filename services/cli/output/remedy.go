package output

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// ended is what messages add to the name of a method that lists ended records only if it is told to.
const ended = " with include_terminal"

// remedyCommands are the commands by method, with their arguments as in their usage. A test demands an entry for each
// method that a message names, and that the command exists with these arguments.
var remedyCommands = map[string]string{
	"CreateExternalTrigger": "trigger create AGENT DESCRIPTION",
	"GetBoard":              "board show SESSION/BOARD",
	"GetTask":               "task get AGENT TASK",
	"ListBoards":            "board list SESSION",
	"ListExternalTriggers":  "trigger list AGENT",
	"ListRounds":            "agent rounds AGENT",
	"ListTasks":             "task list AGENT",
	"ListTimers":            "timer list AGENT",
	"ListWaits":             "wait list AGENT",
	"ListWals":              "board wal list SESSION",
	"ListWorkItems":         "work list AGENT",
	"ListWorkers":           "board workers",
	"QuerySteps":            "board show SESSION/BOARD",
	"ResumeAgent":           "agent resume AGENT",
	"SendTaskInput":         "task input AGENT TASK TEXT",
	"SpawnAgent":            "agent spawn AGENT",
	"StartAgent":            "agent start AGENT",
	"StopTask":              "task stop AGENT TASK",
}

// most is the largest number of commands that are named for one message.
const most = 3

var (
	method = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z][A-Za-z]+\b( with include_terminal)?`)
	// plain is an argument that a shell takes as it stands.
	plain = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@-]*$`)
)

// RemedyValues are the arguments that are known, by their names in usages, such as AGENT.
type RemedyValues map[string]string

// RemedyValuesOf returns the arguments of a command that was run, and what the metadata of a refusal adds to them.
func RemedyValuesOf(cmd *cobra.Command, metadata map[string]string) RemedyValues {
	v := RemedyValues{}
	args := cmd.Flags().Args()
	for i, name := range strings.Fields(cmd.Use)[min(1, len(strings.Fields(cmd.Use))):] {
		if i >= len(args) || strings.ContainsAny(name, ".|(-") {
			break
		}
		v.set(strings.Trim(name, "[]"), args[i])
	}
	v.set("AGENT", metadata["agent_id"])
	return v
}

// set adds a value, and those that follow from it: a session has the id of its agent, and a board is named with its
// session. It leaves out a value that is not plain.
func (v RemedyValues) set(name, value string) {
	if !plain.MatchString(value) {
		return
	}
	v[name] = value
	switch name {
	case "AGENT":
		v["SESSION"] = value
	case "SESSION":
		v["AGENT"] = value
	case "SESSION/BOARD":
		if session, _, ok := strings.Cut(value, "/"); ok {
			v.set("SESSION", session)
		}
	}
}

// RemedyCommands returns the command lines for the methods that a message names, in its order, each once, and not more
// than the constant most. An argument that is not known stays a name in capitals. What is between double quotes in the
// message is the caller's own text and names nothing.
func RemedyCommands(message string, known RemedyValues) []string {
	var lines []string
	seen := map[string]bool{}
	for i, part := range strings.Split(message, `"`) {
		if i%2 == 1 {
			continue
		}
		for _, found := range method.FindAllString(part, -1) {
			name, all := strings.CutSuffix(found, ended)
			usage, ok := remedyCommands[name]
			if !ok || seen[usage] || len(lines) == most {
				continue
			}
			seen[usage] = true
			words := strings.Fields(usage)
			for j, w := range words {
				if value, ok := known[w]; ok {
					words[j] = value
				}
			}
			line := "quartet " + strings.Join(words, " ")
			if all {
				line += " --all"
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// RemedyUsages returns the command for each method, with its arguments: "agent spawn AGENT" for SpawnAgent. The map
// must not be changed.
func RemedyUsages() map[string]string { return remedyCommands }
