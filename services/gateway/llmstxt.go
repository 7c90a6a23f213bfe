package gateway

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// llmsHead is the title and the summary of the repository's llms.txt; a test holds them together.
//
//go:embed llms_head.md
var llmsHead string

// llmsParts are the parts of a server that it may lack.
type llmsParts struct {
	MCP     bool
	Console bool
}

const (
	rest = `## This server

Paths are those of the address from which this page came. All but this page, /openapi.json, /version, /healthz and /readyz take a
credential: the header "Authorization: Bearer KEY". On the machine of ` + "`quartet dev`" +
		` the header is in the file that the server names when it
starts; elsewhere an admin makes a key with ` + "`quartet key create`" + `.

- [OpenAPI](/openapi.json): every path of REST, with its fields and errors
- REST: GET /v1/agents lists agents, POST /v1/agents creates one, GET /v1/agents/{agent_id}:explain says what it waits for, POST
  /v1/agents/{agent_id}/work-items creates a work item, GET /v1/events streams events. A mutation takes the header Idempotency-Key; repeating
  it with the same key does nothing twice.
- gRPC: the same methods on a port of its own (7481, unless it was set), with reflection
`
	mcp = `- MCP over HTTP: /mcp/AGENT, where AGENT is the agent whose memory it is; ?create=true creates it, &tools=memory offers the ten tools of
  a coding agent only. Without a client of HTTP: quartet mcp --agent AGENT --create --tools memory
`
	console = `- [Console](/ui): all of it in a browser, for people
`
	state = `- [Version](/version), [readiness](/readyz)

## A runner of your own

An agent that has input, or whose work can go on, is given a turn, and a runner is the program that takes it: it has the model. One turn, over REST:

1. POST /v1/turns:acquire with {"agentIds": ["AGENT"]} waits for a turn (30 s, or "wait") and leases it. The answer has turn (turnId, runId),
   message, context.text, which is what the model is shown, tools, the names of the tools that the turn may call, and runToken, a credential for
   the calls below. If it has pending instead, ask again. GET /v1/agents/{agent_id}/tools has the schemas of the tools.
2. POST /v1/agents/{agent_id}/turns/{turn_id}:renew with {"runId"} before turn.leaseExpiresAt, again and again.
3. POST /v1/agents/{agent_id}/turns/{turn_id}/rounds with {"runId", "roundIndex": 0, "text", "toolCalls": [{"callId", "name", "arguments"}]} once for
   each answer of the model: the server executes the calls, and toolResults has one result for each. The next round has roundIndex 1. Repeating a
   round returns its first answer. If turnEnded is true, the turn has ended.
4. POST /v1/agents/{agent_id}/turns/{turn_id}:finish with {"runId", "outcome": "TURN_OUTCOME_COMPLETED"} when the model calls no more tools.

GET /v1/agents/{agent_id}/turns/{turn_id}:watch tells of an abort and of messages meanwhile. ` + "`quartet run " +
		"--agent AGENT`" + ` is a runner for models
of Anthropic and OpenAI.

## Errors

A refusal has a status, a reason in capitals, a message with the offending value and the remedy, and in "methods" the paths of the methods
that the message names.
`
)

// llmsText returns the page of a server with these parts.
func llmsText(p llmsParts) string {
	var b strings.Builder
	b.WriteString(llmsHead + "\n" + rest)
	if p.MCP {
		b.WriteString(mcp)
	}
	if p.Console {
		b.WriteString(console)
	}
	b.WriteString(state)
	return b.String()
}

// llmsHandler serves the page, with an ETag by which a client asks whether it changed.
func llmsHandler(p llmsParts) http.Handler {
	text := []byte(llmsText(p))
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("ETag", tag)
		h.Set("Cache-Control", "no-cache") // it may be kept, and is asked for again by its ETag
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	})
}
