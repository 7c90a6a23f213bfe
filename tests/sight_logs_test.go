package tests

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"quartet/services/app"
	"quartet/tests/collector"
	"quartet/tests/dev"
)

// sink is a log that several goroutines write.
type sink struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *sink) Sync() error { return nil }

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Neither a log, however talkative, nor a trace holds a secret, or what people and
// models say (SPEC P3, X4).
func TestSight_NoSecretsInLogsAndTraces(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	c, log := collector.Start(t), &sink{}
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), log, zapcore.DebugLevel)
	cfg, err := dev.Config(t.TempDir())
	require.NoError(t, err)
	cfg.Auth, cfg.BootstrapToken, cfg.OTLPEndpoint, cfg.TraceRatio, cfg.Publish = app.AuthRequired, bootstrap, c.GRPC,
		1, true
	h := &house{cfg: cfg, app: startLogged(t, cfg, zap.New(core))}

	secrets := map[string]string{"the bootstrap token": bootstrap}
	key := func(role string) string {
		made := h.rest(t, bootstrap, "POST", "/v1/keys", `{"name":"`+role+`","role":"`+role+`"}`)
		require.Equal(t, http.StatusOK, made.status, made.body)
		secrets["the key of a "+role] = made.field(t, "secret")[35:] // behind its id, which is none
		return made.field(t, "secret")
	}
	operator, runner := key("operator"), key("runner")
	ok := func(a answer) answer {
		require.Equal(t, http.StatusOK, a.status, a.body)
		return a
	}
	ok(h.rest(t, operator, "POST", "/v1/agents", `{"agentId":"keeper","preset":"public_named"}`))
	secrets["what an operator says"] = "the swordfish is at midnight"
	ok(h.rest(t, operator, "POST", "/v1/agents/keeper/messages", `{"text":"the swordfish is at midnight"}`))
	secrets["a signing secret"] = "0123456789abcdef0123456789abcdef-sign"
	made := ok(h.rest(t, operator, "POST", "/v1/agents/keeper/triggers",
		`{"deliveryMode":"contentful","signatureScheme":"hub_sha256","signingSecret":"0123456789abcdef0123456789abcdef-sign"}`))
	token := made.field(t, "token")
	secrets["the token of a trigger"] = token
	secrets["what comes from outside"] = "barracuda at noon"
	require.Equal(t, http.StatusForbidden, h.rest(t, "", "POST", "/v1/triggers/"+token, "barracuda at noon").status,
		"it is not signed")
	made = ok(h.rest(t, operator, "POST", "/v1/agents/keeper/triggers", `{"deliveryMode":"contentful"}`))
	secrets["the token of another"] = made.field(t, "token")
	ok(h.rest(t, "", "POST", "/v1/triggers/"+made.field(t, "token"), "barracuda at noon"))
	secrets["a token that leads nowhere"] = strings.Repeat("n0where", 9)
	require.Equal(t, http.StatusNotFound, h.rest(t, "", "POST", "/v1/triggers/"+secrets["a token that leads nowhere"],
		"{}").status)
	secrets["a wrong key"] = strings.Repeat("badf00d", 9)
	require.Equal(t, http.StatusUnauthorized, h.rest(t, "qk_"+secrets["a wrong key"], "GET", "/v1/agents", "").status)
	turn := ok(h.rest(t, runner, "POST", "/v1/turns:acquire", `{"agentIds":["keeper"],"wait":"20s"}`))
	secrets["a run's token"] = turn.field(t, "runToken")
	require.NotEmpty(t, secrets["a run's token"])
	ok(h.rest(t, operator, "GET", "/v1/agents/keeper/messages", ""))
	secrets["a command's variable"], secrets["a command's output"] = "hunter2hunter2", "the-output-of-it"
	ok(h.rest(t, operator, "POST", "/v1/agents/keeper/tasks:exec",
		`{"command":{"cmd":"echo the-output-$X; echo $PASSWORD >/dev/null","env":{"PASSWORD":"hunter2hunter2","X":"of-it"}},"yieldTime":"20s"}`))

	has := func(name string) bool {
		for _, s := range c.Spans("") {
			if s.GetName() == name {
				return true
			}
		}
		return false
	}
	for _, name := range []string{
		"POST /v1/triggers/{token}", "POST /v1/agents/{agent_id}/messages",
		"CreateExternalTrigger", "command", "POST /v1/keys",
	} {
		require.Eventually(t, func() bool { return has(name) }, time.Minute, 20*time.Millisecond, name)
	}
	text := log.String()
	require.Contains(t, text, `"trace_id"`)
	require.Contains(t, text, "DeliverTrigger")
	for what, secret := range secrets {
		require.NotContains(t, text, secret, what)
		for _, s := range c.Spans("") {
			require.NotContains(t, s.String(), secret, "%s in %s", what, s.GetName())
		}
	}
}
