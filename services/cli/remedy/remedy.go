// Package remedy says with which commands a person does what a message of the server says.
//
// The messages name methods of the API, such as "SpawnAgent makes one": callers over gRPC know them, REST adds their
// paths, and results of tools have the tools' names instead. The command line adds the commands (SPEC X5.1).
//
// Owns: which command stands for a method that messages name as a remedy.
// Never does: change a message.
// Reads: messages, and the arguments of the command that failed.
// Emits: nothing.
package remedy

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// ended is what messages add to the name of a method that lists ended records only if it is told to.
const ended = " with include_terminal"

// commands are the commands by method, with their arguments as in their usage. A test demands an entry for each method
// that a message names, and that the command exists with these arguments.
var commands = map[string]string{
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

// Values are the arguments that are known, by their names in usages, such as AGENT.
type Values map[string]string

// Given returns the arguments of a command that was run, and what the metadata of a refusal adds to them.
func Given(cmd *cobra.Command, metadata map[string]string) Values {
	v := Values{}
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
func (v Values) set(name, value string) {
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

// Commands returns the command lines for the methods that a message names, in its order, each once, and not more than
// the constant most. An argument that is not known stays a name in capitals. What is between double quotes in the
// message is the caller's own text and names nothing.
func Commands(message string, known Values) []string {
	var lines []string
	seen := map[string]bool{}
	for i, part := range strings.Split(message, `"`) {
		if i%2 == 1 {
			continue
		}
		for _, found := range method.FindAllString(part, -1) {
			name, all := strings.CutSuffix(found, ended)
			usage, ok := commands[name]
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

// Usages returns the command for each method, with its arguments: "agent spawn AGENT" for SpawnAgent. The map must not
// be changed.
func Usages() map[string]string { return commands }
