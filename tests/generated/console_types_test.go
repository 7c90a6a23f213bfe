package generated

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/deploy/openapi"
)

// consoleTypes are the messages of the API that the console names, with the fields that every one has. Messages that
// these contain follow under their own names.
var consoleTypes = []struct {
	name, schema string
	always       []string
}{
	{"Agent", "v1Agent", []string{"agentId"}},
	{"Wait", "v1Wait", []string{"waitId"}},
	{"Todo", "v1TodoItem", []string{"text"}},
	{"WorkItem", "v1WorkItem", []string{"workItemId", "objective"}},
	{"WorkQueue", "v1GetWorkQueueResponse", nil},
	{"Message", "v1Message", []string{"messageId"}},
	{"Turn", "v1Turn", []string{"turnId"}},
	{"ToolCall", "v1ToolCall", []string{"callId", "name"}},
	{"ToolResult", "v1ToolResult", []string{"callId"}},
	{"Round", "v1Round", []string{"turnId"}},
	{"Verdict", "v1Decision", nil},
	{"Explanation", "v1ExplainResponse", nil},
	{"Fact", "v1Fact", []string{"name"}},
	{"Candidate", "v1Candidate", []string{"workItemId"}},
	{"Trigger", "v1Trigger", []string{"triggerId"}},
	{"Timer", "v1Timer", []string{"timerId"}},
	{"Task", "v1Task", []string{"taskId"}},
	{"Delegation", "v1Delegation", []string{"delegationId"}},
	{"ChildQuestion", "v1ChildQuestion", []string{"waitId"}},
	{"Brief", "v1Brief", []string{"briefId"}},
	{"QuartetEvent", "v1Event", []string{"cursor", "eventId", "eventType", "plane"}},
	{"Step", "v1Step", []string{"stepId"}},
	{"Board", "v1Board", []string{"boardId", "sessionId"}},
	{"WorkerRun", "v1WorkerRun", []string{"runId"}},
	{"Dispatch", "v1StandingDispatch", []string{"dispatchId"}},
	{"BoardWorker", "v1BoardWorker", []string{"workerId"}},
	{"Key", "v1Key", []string{"keyId"}},
	{"Process", "v1Process", []string{"processId"}},
	{"Installation", "v1ListProcessesResponse", nil},
	{"WhoAmI", "v1WhoAmIResponse", nil},
	{"Utterance", "v1Utterance", nil},
}

// schema is what is read of a schema of OpenAPI.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       string            `json:"type"`
	Items      *schema           `json:"items"`
	Values     *schema           `json:"additionalProperties"`
	Properties map[string]schema `json:"properties"`
}

// typesWriter writes schemas as interfaces of TypeScript.
type typesWriter struct {
	all   map[string]schema
	names map[string]string // of interfaces, by schema
	todo  []string          // schemas that were named and not written yet
}

// consoleTypesFile is services/console/ui/src/types.ts.
func consoleTypesFile(t *testing.T) string {
	t.Helper()
	var document struct {
		Components struct {
			Schemas map[string]schema `json:"schemas"`
		} `json:"components"`
	}
	require.NoError(t, json.Unmarshal(openapi.JSON, &document))
	w := typesWriter{all: document.Components.Schemas, names: map[string]string{}}
	always := map[string][]string{}
	for _, c := range consoleTypes {
		require.Contains(t, w.all, c.schema)
		for _, field := range c.always {
			require.Contains(t, w.all[c.schema].Properties, field, c.schema)
		}
		w.names[c.schema], always[c.schema] = c.name, c.always
		w.todo = append(w.todo, c.schema)
	}
	var b strings.Builder
	b.WriteString("// Generated from deploy/openapi/quartet.openapi.json by make generate; see tests/generated.\n")
	b.WriteString("// Fields without a value are absent.\n")
	for len(w.todo) > 0 {
		of := w.todo[0]
		w.todo = w.todo[1:]
		fmt.Fprintf(&b, "\nexport interface %s {\n", w.names[of])
		for _, field := range slices.Sorted(maps.Keys(w.all[of].Properties)) {
			mark := "?"
			if slices.Contains(always[of], field) {
				mark = ""
			}
			fmt.Fprintf(&b, "  %s%s: %s;\n", field, mark, w.typeOf(w.all[of].Properties[field]))
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// typeOf returns the type of a value, and names the schemas that it refers to.
func (w *typesWriter) typeOf(s schema) string {
	switch {
	case s.Ref != "":
		of := s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
		target := w.all[of]
		if len(target.Properties) == 0 {
			return w.typeOf(target) // an enum, or anything
		}
		if w.names[of] == "" {
			w.names[of] = strings.TrimPrefix(of, "v1")
			w.todo = append(w.todo, of)
		}
		return w.names[of]
	case s.Items != nil:
		return w.typeOf(*s.Items) + "[]"
	case s.Values != nil:
		return "Record<string, " + w.typeOf(*s.Values) + ">"
	case s.Type == "integer" || s.Type == "number":
		return "number"
	case s.Type == "object":
		return "Record<string, unknown>"
	case s.Type == "string" || s.Type == "boolean":
		return s.Type
	default:
		return "unknown"
	}
}
