package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// The parts of the document that the generator cannot know, as JSON: the document's name, the
// form of the gateway's errors, the headers that the gateway understands, and the route that the
// gateway serves without the generator.
const (
	statusRef = "#/components/schemas/rpcStatus"
	bodyRef   = "#/components/schemas/ErrorBody"

	info = `{
  "title": "Quartet",
  "version": "v1",
  "description": "A durable control plane for long-lived AI agents. Bodies are JSON; camelCase is written, camelCase and snake_case are read, unknown fields are refused."
}`
	schemas = `{
  "Error": {"type": "object", "required": ["error"], "properties": {"error": {"$ref": "#/components/schemas/ErrorBody"}}},
  "ErrorBody": {
    "type": "object",
    "required": ["code", "status", "reason", "message"],
    "properties": {
      "code": {"type": "integer", "description": "The HTTP status."},
      "status": {"type": "string", "description": "The canonical gRPC code, such as ABORTED."},
      "reason": {"type": "string", "description": "The documented reason, such as REVISION_CONFLICT."},
      "message": {"type": "string", "description": "What is wrong, with the offending value, and how to fix it."},
      "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
      "methods": {"type": "object", "additionalProperties": {"type": "string"}, "description": "The HTTP method and path of each RPC that the message names, such as POST /v1/agents for SpawnAgent."},
      "fields": {
        "type": "array",
        "items": {"type": "object", "properties": {"field": {"type": "string"}, "description": {"type": "string"}}}
      }
    }
  }
}`
	trigger = `{
  "post": {
    "operationId": "DeliverTrigger",
    "summary": "Takes what an outside system sent. The token is the only credential.\nErrors: NOT_FOUND, TRIGGER_REVOKED, TRIGGER_EXPIRED, SIGNATURE_INVALID, AGENT_STOPPED, TOO_LARGE.\nInstead of Idempotency-Key the id that the sender sets is taken: webhook-id, svix-id, X-GitHub-Delivery, X-Gitea-Delivery, X-Forgejo-Delivery, X-Gogs-Delivery, X-Request-UUID, X-Atlassian-Webhook-Identifier, X-Shopify-Webhook-Id, I-Twilio-Idempotency-Token, Linear-Delivery, or ce-source and ce-id.",
    "tags": ["WaitingService"],
    "parameters": [{"name": "token", "in": "path", "required": true, "schema": {"type": "string"}},
      {"name": "X-Hub-Signature-256", "in": "header", "required": false, "schema": {"type": "string"}, "description": "Triggers with signature scheme hub_sha256: sha256= and the HMAC-SHA256 of the body in hex."},
      {"name": "webhook-id", "in": "header", "required": false, "schema": {"type": "string"}, "description": "Triggers with signature scheme standard_webhooks."},
      {"name": "webhook-timestamp", "in": "header", "required": false, "schema": {"type": "string"}, "description": "Triggers with signature scheme standard_webhooks: Unix seconds, within 5 minutes of the server's clock."},
      {"name": "webhook-signature", "in": "header", "required": false, "schema": {"type": "string"}, "description": "Triggers with signature scheme standard_webhooks."}
    ],
    "requestBody": {"description": "Anything, at most 256 KiB.", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}},
    "responses": {
      "200": {"description": "What it came to.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/v1DeliverTriggerResponse"}}}},
      "default": {"description": "A refusal.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    }
  }
}`
	delivered = `{
  "type": "object",
  "properties": {
    "outcome": {"type": "string", "enum": ["DELIVERY_OUTCOME_TRIGGERED", "DELIVERY_OUTCOME_COALESCED", "DELIVERY_OUTCOME_IGNORED"]},
    "reason": {"type": "string", "description": "Why it was ignored."},
    "deliveryId": {"type": "string"}
  }
}`
	idempotencyKey = `{"name": "Idempotency-Key", "in": "header", "required": false, "schema": {"type": "string", "maxLength": 128},
  "description": "Same as requestId. A repeated request answers the first outcome, with the header Idempotent-Replayed: true."}`
	ifMatch = `{"name": "If-Match", "in": "header", "required": false, "schema": {"type": "string"},
  "description": "Same as expectedRevision, quoted as in ETag. Another revision answers 412."}`
)

func parse(text string) (any, error) {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	return v, nil
}

// finish adds the parts above to the document, in place.
func finish(doc map[string]any) error {
	parsed := map[string]any{}
	for name, text := range map[string]string{
		"info": info, "schemas": schemas, "trigger": trigger, "delivered": delivered, "key": idempotencyKey,
		"match": ifMatch,
	} {
		v, err := parse(text)
		if err != nil {
			return err
		}
		parsed[name] = v
	}
	doc["info"] = parsed["info"]
	components, _ := doc["components"].(map[string]any)
	all, _ := components["schemas"].(map[string]any)
	paths, _ := doc["paths"].(map[string]any)
	if all == nil || paths == nil {
		return fmt.Errorf("the document has no schemas or no paths")
	}
	delete(all, "rpcStatus")
	for name, s := range parsed["schemas"].(map[string]any) {
		all[name] = s
	}
	if all["v1DeliverTriggerResponse"] == nil {
		all["v1DeliverTriggerResponse"] = parsed["delivered"]
	}
	paths["/v1/triggers/{token}"] = parsed["trigger"]
	reword(doc)
	for path, item := range paths {
		for verb, op := range item.(map[string]any) {
			o, ok := op.(map[string]any)
			if !ok || verb != "post" && verb != "patch" {
				continue
			}
			params, _ := o["parameters"].([]any)
			params = append(params, parsed["key"])
			if verb == "patch" || strings.HasSuffix(path, ":complete") {
				params = append(params, parsed["match"])
			}
			o["parameters"] = params
		}
	}
	return nil
}

// reword replaces the generator's schemas of errors in v, in place, by those of what the gateway sends: an
// object Error for a call, and an ErrorBody in a line of a stream.
func reword(v any) {
	switch v := v.(type) {
	case map[string]any:
		if responses, ok := v["responses"].(map[string]any); ok {
			responses["default"] = map[string]any{
				"description": "A refusal or a failure.",
				"content": map[string]any{
					"application/json": map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/Error"}},
				},
			}
		}
		if v["$ref"] == statusRef {
			v["$ref"] = bodyRef
		}
		for _, inner := range v {
			reword(inner)
		}
	case []any:
		for _, inner := range v {
			reword(inner)
		}
	}
}
