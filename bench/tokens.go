package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"quartet/services/mcp"
)

const (
	// bytesPerToken is how many bytes count as a token everywhere in Quartet.
	bytesPerToken = 4
	// listedItems is how many open items the list of a conversation has.
	listedItems = 31
)

// size is how many bytes of a model's context something takes.
type size struct {
	name  string
	bytes int
	note  string
}

func (s size) tokens() int { return (s.bytes + bytesPerToken - 1) / bytesPerToken }

// measureTokens reports how much of the context of a model Quartet takes if the model uses it over MCP. The
// figures are sizes: they do not depend on the machine and its speed.
func measureTokens(ctx context.Context, o options, say func(row)) error {
	if !o.wants(nameTokens) {
		return nil
	}
	sizes, err := tokens(ctx, filepath.Join(o.dir, "tokens"))
	if err != nil {
		return err
	}
	for _, s := range sizes {
		say(row{name: nameTokens + s.name, size: &s})
	}
	return nil
}

// nameTokens begins the names of the figures.
const nameTokens = "tokens: "

// tokens starts a server in dir, has a conversation with each set of tools, and returns the figures in order.
func tokens(ctx context.Context, dir string) ([]size, error) {
	q, err := start(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer q.stop(ctx)
	var out []size
	for _, set := range []string{mcp.AllTools, mcp.MemoryTools} {
		c, err := converse(ctx, q, dir, set)
		if err != nil {
			return nil, err
		}
		out = append(out, c.schemas(set)...)
		out = append(out,
			size{
				"first calls, tools=" + set, c.instructions + c.tools + c.list,
				fmt.Sprintf("instructions %d, tools/list %d, ListWorkItems of %d open items %d bytes", c.instructions,
					c.tools, listedItems, c.list),
			},
			size{
				"create, update and complete an item, tools=" + set, c.create + c.update + c.complete,
				fmt.Sprintf("arguments and results: %d, %d and %d bytes", c.create, c.update, c.complete),
			})
	}
	return out, nil
}

// conversation has the sizes of one conversation in bytes.
type conversation struct {
	instructions, tools, inputs, outputs, count, list, create, update, complete int
}

func (c conversation) schemas(set string) []size {
	return []size{{"tool schemas, tools=" + set, c.tools, fmt.Sprintf("%d tools: names, descriptions and input "+
		"schemas %d, output schemas %d bytes", c.count, c.inputs, c.outputs)}}
}

// converse makes the MCP calls of a coding agent over HTTP, for a new agent, and returns their sizes.
func converse(ctx context.Context, q *quartet, dir, set string) (conversation, error) {
	var c conversation
	hc := &http.Client{Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	s, err := sdk.NewClient(&sdk.Implementation{Name: "bench", Version: "1"}, nil).
		Connect(ctx, &sdk.StreamableClientTransport{
			Endpoint:   fmt.Sprintf("http://%s/mcp/memory-of-%s?create=true&tools=%s", q.app.HTTPAddr(), set, set),
			HTTPClient: hc, DisableStandaloneSSE: true, MaxRetries: -1,
		}, nil)
	if err != nil {
		return c, err
	}
	defer func() { _ = s.Close() }()
	c.instructions = len(s.InitializeResult().Instructions)
	listed, err := s.ListTools(ctx, nil)
	if err != nil {
		return c, err
	}
	c.count = len(listed.Tools)
	for _, t := range listed.Tools {
		in, err := json.Marshal(map[string]any{
			"name": t.Name, "description": t.Description,
			"inputSchema": t.InputSchema,
		})
		if err != nil {
			return c, err
		}
		c.inputs += len(in)
		if t.OutputSchema == nil {
			continue
		}
		out, err := json.Marshal(t.OutputSchema)
		if err != nil {
			return c, err
		}
		c.outputs += len(`,"outputSchema":`) + len(out)
	}
	c.tools = c.inputs + c.outputs
	var item string
	call := func(name string, args map[string]any) (int, error) {
		given, err := json.Marshal(args)
		if err != nil {
			return 0, err
		}
		got, err := s.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			return 0, err
		}
		text, ok := got.Content[0].(*sdk.TextContent)
		if !ok || got.IsError {
			return 0, fmt.Errorf("%s: %v", name, got.Content[0])
		}
		if envelope, ok := got.StructuredContent.(map[string]any); ok && name == "CreateWorkItem" {
			result, _ := envelope["result"].(map[string]any)
			made, _ := result["work_item"].(map[string]any)
			item, _ = made["work_item_id"].(string)
		}
		return len(given) + len(constant(text.Text, dir)), nil
	}
	for i := range listedItems {
		if _, err := call("CreateWorkItem", newItem(i)); err != nil {
			return c, err
		}
	}
	if c.list, err = call("ListWorkItems", map[string]any{"filter": "open", "limit": listedItems}); err != nil {
		return c, err
	}
	if c.create, err = call("CreateWorkItem", newItem(listedItems)); err != nil {
		return c, err
	}
	todos, _ := newItem(listedItems)["todo_list"].([]any)
	if c.update, err = call("UpdateWorkItem", map[string]any{"work_item_id": item, "todo_list": todos}); err != nil {
		return c, err
	}
	c.complete, err = call("CompleteWorkItem", map[string]any{"work_item_id": item, "report": "Done: the change is " +
		"merged, the tests of the package pass, nothing is left."})
	return c, err
}

// newItem returns the arguments of an item of ordinary size: a plan of half a page, three todos.
func newItem(i int) map[string]any {
	todo := func(text, state string) map[string]any { return map[string]any{"text": text, "state": state} }
	return map[string]any{
		"objective":   fmt.Sprintf("Objective %02d: the parser accepts comments, and its tests cover them", i),
		"plan_status": "ready",
		"plan": strings.Repeat("Read the grammar, change the scanner, then the parser; keep the public API as "+
			"it is.\n", 20),
		"todo_list": []any{
			todo("read the grammar", "completed"), todo("change the scanner", "in_progress"),
			todo("change the parser and its tests", "pending"),
		},
	}
}

var timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)

// constant replaces what may have another length in another run: times, whose fractions have no
// zeros at their end, and the data directory.
func constant(text, dir string) string {
	return strings.ReplaceAll(timestamp.ReplaceAllString(text, "2026-01-02T03:04:05.123456789Z"), dir,
		"/var/lib/quartet")
}

// tokenTable returns the section about tokens, or "" if they were not measured.
func tokenTable(rows []row) string {
	var b strings.Builder
	for _, r := range rows {
		if r.size != nil {
			fmt.Fprintf(&b, "| %s | %d | %d | %s |\n", r.size.name, r.size.bytes, r.size.tokens(), r.size.note)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n## Tokens\n\nWhat a model is shown over MCP, in tokens of four bytes. These are sizes, the same on " +
		"every machine.\n\n" +
		"| figure | bytes | tokens | of which |\n|---|---:|---:|---|\n" + b.String()
}
