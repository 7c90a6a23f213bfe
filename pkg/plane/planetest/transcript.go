package planetest

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/must"
	"quartet/pkg/pbjson"
)

var rewrite = flag.Bool("rewrite", false, "write what happened into testdata/*.txt instead of comparing")

// Line is one command of a transcript:
//
//	> VERB option=value option=value {"json": "arguments"}
//
// The option save=NAME keeps an id of the answer; $NAME stands for it in later
// lines and in what is printed.
type Line struct {
	Verb    string
	Options map[string]string
	Args    string
}

// Stage runs the commands of one transcript and prints what came of each.
type Stage interface {
	Do(t *testing.T, line Line, names *Names) string
}

// Names are the ids of a transcript by the names it gives them. Ids that have
// no name are numbered by the order in which they show up.
type Names struct {
	byID  map[string]string
	ids   map[string]string
	count map[string]int
}

// Save names an id.
func (n *Names) Save(name, id string) {
	n.ids[name], n.byID[id] = id, "$"+name
}

var (
	idPattern   = regexp.MustCompile(`\b(wi|wt|trg|tmr|tsk|msg|trn|run|brf|dlv)_[0-9a-hjkmnp-tv-z]{26}\b`)
	namePattern = regexp.MustCompile(`\$[a-z]\w*`)
)

func (n *Names) expand(s string) string {
	return namePattern.ReplaceAllStringFunc(s, func(name string) string {
		if id, ok := n.ids[name[1:]]; ok {
			return id
		}
		return name
	})
}

// Show puts names in the place of ids.
func (n *Names) Show(s string) string {
	return idPattern.ReplaceAllStringFunc(s, func(id string) string {
		if name, ok := n.byID[id]; ok {
			return name
		}
		prefix, _, _ := strings.Cut(id, "_")
		n.count[prefix]++
		n.byID[id] = fmt.Sprintf("%s#%d", prefix, n.count[prefix])
		return n.byID[id]
	})
}

// Transcripts runs every file that matches pattern as a test of its own and
// compares what is printed with the file; with -rewrite it changes the file instead.
func Transcripts(t *testing.T, pattern string, stage func(t *testing.T) Stage) {
	t.Helper()
	files := must.Value(filepath.Glob(pattern))(t)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want := must.Value(os.ReadFile(file))(t)
			got := play(t, string(want), stage(t))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
				return
			}
			require.Equal(t, string(want), got, "if this is right: go test -run %s -rewrite", t.Name())
		})
	}
}

func play(t *testing.T, text string, stage Stage) string {
	names := &Names{byID: map[string]string{}, ids: map[string]string{}, count: map[string]int{}}
	var out strings.Builder
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "> "):
			out.WriteString(line)
			printed := names.Show(stage.Do(t, parse(t, names.expand(strings.TrimSpace(line[2:]))), names))
			for l := range strings.Lines(printed) {
				out.WriteString("  " + strings.TrimRight(l, "\n") + "\n")
			}
		case strings.HasPrefix(line, "#"), strings.TrimSpace(line) == "":
			out.WriteString(line)
		}
	}
	return out.String()
}

func parse(t *testing.T, s string) Line {
	l := Line{Options: map[string]string{}, Args: "{}"}
	if i := strings.IndexByte(s, '{'); i >= 0 {
		s, l.Args = s[:i], s[i:]
	}
	for i, word := range strings.Fields(s) {
		if i == 0 {
			l.Verb = word
			continue
		}
		name, value, ok := strings.Cut(word, "=")
		require.True(t, ok, "option %q has no value", word)
		l.Options[name] = value
	}
	return l
}

// Request reads a line's arguments into a request. A default is used where the
// request has such a field and the line does not give it.
func (l Line) Request(t *testing.T, req proto.Message, defaults map[string]string) proto.Message {
	t.Helper()
	args := map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(l.Args), &args), "%s", l.Args)
	for k, v := range defaults {
		fd := req.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(k))
		if _, given := args[k]; !given && fd != nil {
			args[k] = v
		}
	}
	raw := must.Value(json.Marshal(args))(t)
	require.NoError(t, pbjson.Unmarshal(raw, req))
	return req
}

// Refusal prints an error: its reason and its message.
func Refusal(err error) string {
	f := fault.From(err)
	return fmt.Sprintf("error %s: %s\n", f.Reason(), f.Message())
}

// Events prints events with their payloads but the fields named.
func Events(events []*journal.Event, without ...protoreflect.Name) string {
	var b strings.Builder
	for _, ev := range events {
		fmt.Fprintf(&b, "event %s", ev.Type)
		if ev.ReadinessTo != "" {
			fmt.Fprintf(&b, " [%s -> %s: %s]", ev.ReadinessFrom, ev.ReadinessTo, ev.ReadinessReason)
		}
		fmt.Fprintf(&b, " %s\n", Show(ev.Payload, without...))
	}
	return b.String()
}

// left out of what is printed: times move with the clock, paths with the test.
var quiet = map[protoreflect.Name]bool{
	"created_at": true, "updated_at": true, "completed_at": true, "plan_artifact": true, "agent_id": true,
	"binding_note": true, "current_todo": true,
}

// Show prints a message in one line, in the form of a journal's payload, without
// what changes from run to run and without the fields named.
func Show(m proto.Message, without ...protoreflect.Name) string {
	c := proto.Clone(m)
	hush(c.ProtoReflect(), without)
	raw, err := pbjson.Append(nil, c)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func hush(m protoreflect.Message, without []protoreflect.Name) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case quiet[fd.Name()] || slices.Contains(without, fd.Name()):
			m.Clear(fd)
		case fd.IsMap() || fd.Kind() != protoreflect.MessageKind:
		case fd.IsList():
			for i := range v.List().Len() {
				hush(v.List().Get(i).Message(), without)
			}
		default:
			hush(v.Message(), without)
		}
		return true
	})
}
