package tests

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/bus"
	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/app"
)

// TestP3_ReplaysOverHTTP plays a signed delivery again with everything that a sender's proxy, or an
// attacker who has read it, can add: it stays one delivery. What clients and consumers of EVENTS see
// of the trigger has neither the hash of its secret nor its signing secret.
func TestP3_ReplaysOverHTTP(t *testing.T) {
	planes, door := twoDoorsWith(t, func(cfg *app.Config) { cfg.Publish = true })
	_, operator := planes.key(t, &identityv1.CreateKeyRequest{Name: "op", Role: identityv1.Role_ROLE_OPERATOR})
	require.Equal(t, http.StatusOK, door.rest(t, operator, "POST", "/v1/agents",
		`{"preset":"public_named","agentId":"keeper"}`).status)
	const secret = "0123456789abcdef0123456789abcdef-sign"
	made := door.rest(t, operator, "POST", "/v1/agents/keeper/triggers",
		`{"deliveryMode":"contentful","signatureScheme":"hub_sha256","signingSecret":"`+secret+`"}`)
	require.Equal(t, http.StatusOK, made.status, made.body)

	deliver := func(body string, headers ...string) answer {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(body))
		req, err := http.NewRequestWithContext(soon(t), http.MethodPost, "http://"+door.cfg.HTTPAddr+"/v1/triggers/"+
			made.field(t, "token"), bytes.NewBufferString(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp := must.Value(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		return answer{resp.StatusCode, resp.Header, string(must.Value(io.ReadAll(resp.Body))(t))}
	}
	first := deliver(`{"n":1}`, "X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
	require.Equal(t, http.StatusOK, first.status, first.body)
	for _, headers := range [][]string{
		{"X-GitHub-Delivery", "another"},
		{"Idempotency-Key", "mine"},
		{"Idempotency-Key", "mine-2", "X-GitHub-Delivery", "third"},
		{"Webhook-Id", "msg_9"},
		{"Ce-Id", "1", "Ce-Source", "/x"},
		{"Content-Type", "text/plain"},
		{},
	} {
		again := deliver(`{"n":1}`, headers...)
		require.Equal(t, http.StatusOK, again.status, again.body)
		require.Equal(t, first.field(t, "deliveryId"), again.field(t, "deliveryId"), headers)
		require.Equal(t, "true", again.header.Get("Idempotent-Replayed"), headers)
	}
	require.NotEqual(t, first.field(t, "deliveryId"), deliver(`{"n":2}`).field(t, "deliveryId"))

	seen := door.rest(t, operator, "GET", "/v1/events?from_start=true&stop_at_end=true", "").body
	require.Equal(t, 2, strings.Count(seen, `"trigger_delivered"`), seen)
	nc := must.Value(nats.Connect(planes.cfg.NATSURL))(t)
	defer nc.Close()
	stream := must.Value(must.Value(jetstream.New(nc))(t).Stream(soon(t), bus.Stream))(t)
	copied, err := stream.CreateConsumer(soon(t), jetstream.ConsumerConfig{FilterSubject: "quartet.events.*.waiting.>"})
	require.NoError(t, err)
	var texts strings.Builder
	for found := 0; found < 2; { // what is copied ends with the second delivery
		m := must.Value(copied.Next(jetstream.FetchMaxWait(eventually)))(t)
		texts.Write(m.Data())
		if strings.HasSuffix(m.Subject(), ".trigger_delivered") {
			found++
		}
	}
	require.Contains(t, texts.String(), made.field(t, "trigger", "triggerId"))
	for _, name := range []string{"token_hash", "tokenHash", "sealed_signing_secret", "sealedSigningSecret", secret} {
		require.NotContains(t, texts.String(), name)
		require.NotContains(t, seen, name)
	}
}
