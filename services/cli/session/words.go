package session

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"quartet/pkg/id"
)

// placeholders are the words of a Use line that stand for records.
var placeholders = map[string]*kind{
	"AGENT": agentKind, "SESSION": agentKind, "ITEM": itemKind, "TASK": taskKind, "WAIT": waitKind,
	"TRIGGER": triggerKind, "TIMER": timerKind,
	"RUN": runKind, "DISPATCH": dispatchKind, "STEP": stepKind, "WAL": walKind, "POOL": poolKind, "[TOOL]": toolKind,
}

// boardPlaceholder is the placeholder of a board, which is named together with its session.
const boardPlaceholder = "SESSION/BOARD"

// flagKinds are the flags that name records. Those of --resource depend on what is typed.
var flagKinds = map[string]*kind{
	"agent": agentKind, "parent": agentKind, "item": itemKind, "turn": turnKind, "wait": waitKind, "pool": poolKind,
	"step": stepKind,
}

// resourceKinds are what --resource may name.
var resourceKinds = []*kind{taskKind, triggerKind}

// destructive are the commands that end or remove something. What people name themselves must be typed in full there;
// the beginning of a generated id suffices, and the complete one is shown first.
var destructive = map[string]bool{
	"delete": true, "revoke": true, "cancel": true, "complete": true, "fail": true, "stop": true, "abort": true,
	"rotate": true, "cancel-run": true,
}

// word is an argument or the value of a flag that names a record.
type word struct {
	kind *kind
	arg  int         // the index of the argument, if flag is nil
	flag *pflag.Flag // a flag that was given
}

// words returns the arguments and flags of a command that name records; board is the index of the argument that names a
// board with its session, or -1.
func words(cmd *cobra.Command, args []string) (all []word, board int) {
	board = -1
	for i, name := range positions(cmd) {
		if i >= len(args) {
			break
		}
		if name == boardPlaceholder {
			board = i
		} else if k := placeholders[name]; k != nil {
			all = append(all, word{kind: k, arg: i})
		}
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() != "string" {
			return
		}
		k := flagKinds[f.Name]
		if f.Name == "resource" {
			for _, candidate := range resourceKinds {
				if strings.HasPrefix(f.Value.String(), candidate.prefix) {
					k = candidate
				}
			}
		}
		if k != nil {
			all = append(all, word{kind: k, flag: f})
		}
	})
	return all, board
}

// positions returns the placeholders of the arguments of a command.
func positions(cmd *cobra.Command) []string {
	fields := strings.Fields(cmd.Use)
	if len(fields) == 0 || strings.HasPrefix(strings.Join(fields[1:], " "), "-") {
		return nil // a command whose Use line begins with its flags has no arguments
	}
	return fields[1:]
}

// stateText returns what was typed.
func (w word) text(args []string) string {
	if w.flag != nil {
		return w.flag.Value.String()
	}
	return args[w.arg]
}

// set replaces what was typed.
func (w word) set(args []string, to string) error {
	if w.flag != nil {
		return w.flag.Value.Set(to)
	}
	args[w.arg] = to
	return nil
}

// incomplete reports whether a text is the beginning of a generated id.
func (k *kind) incomplete(text string) bool {
	return k.prefix != "" && strings.HasPrefix(text, k.prefix) && len(text) < len(k.prefix)+id.Length
}
