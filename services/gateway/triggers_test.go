package gateway

import (
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
)

// The headers of the big senders name a delivery; the first known one counts.
func TestP3_ASendersOwnIdIsTheKey(t *testing.T) {
	for name, c := range map[string]struct {
		header []string
		want   string
	}{
		"none":      {nil, ""},
		"anybody's": {[]string{"Idempotency-Key", "d1"}, "d1"},
		"quoted":    {[]string{"Idempotency-Key", `"d1"`}, "d1"},
		"GitHub": {
			[]string{"X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"},
			"x-github-delivery:72d3162e-cc78-11e3-81ab-4c9367dc0958",
		},
		"Gitea says both":   {[]string{"X-Gitea-Delivery", "g", "X-GitHub-Delivery", "g"}, "x-github-delivery:g"},
		"standard":          {[]string{"webhook-id", "msg_1"}, "webhook-id:msg_1"},
		"CloudEvents":       {[]string{"ce-id", "1", "ce-source", "/ci"}, "ce-id:/ci#1"},
		"the caller's wins": {[]string{"X-GitHub-Delivery", "g", "Idempotency-Key", "mine"}, "mine"},
		"blank":             {[]string{"X-GitHub-Delivery", "  "}, ""},
	} {
		h := http.Header{}
		for i := 0; i < len(c.header); i += 2 {
			h.Set(c.header[i], c.header[i+1])
		}
		got, err := deliveryKey(h)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
	long := http.Header{}
	long.Set("X-Github-Delivery", strings.Repeat("x", 500))
	key, err := deliveryKey(long)
	require.NoError(t, err, "a sender's header is not the sender's mistake")
	require.NoError(t, fault.RequestID(key))
	other := http.Header{}
	other.Set("X-Github-Delivery", strings.Repeat("x", 499))
	otherKey, err := deliveryKey(other)
	require.NoError(t, err)
	require.NotEqual(t, key, otherKey)
	long.Set("Idempotency-Key", strings.Repeat("x", 129))
	_, err = deliveryKey(long)
	require.ErrorIs(t, err, fault.LimitExceeded, "who names a key itself is told")
}

func TestP3_HeadersReachThePlaneAsTheyAre(t *testing.T) {
	r := newRig(t)
	a := r.do(http.MethodPost, triggerPath+goodToken, "a=b&c=d",
		"Content-Type", "application/x-www-form-urlencoded", "X-Hub-Signature-256", "sha256=00",
		"webhook-id", "msg_1", "webhook-timestamp", "17", "webhook-signature", "v1,x", "X-GitHub-Delivery", "g1")
	require.Equal(t, 200, a.status, string(a.body))
	req := r.waiting.delivered[0]
	require.Equal(t, "a=b&c=d", string(req.GetBody()), "a form is not taken apart")
	require.Equal(t, "application/x-www-form-urlencoded", req.GetContentType())
	require.Equal(t, "sha256=00", req.GetHubSignature_256())
	require.Equal(t, []string{"msg_1", "17", "v1,x"}, []string{
		req.GetWebhookId(), req.GetWebhookTimestamp(),
		req.GetWebhookSignature(),
	})
	require.Equal(t, "webhook-id:msg_1", req.GetRequestId())

	require.Equal(t, 200, r.do(http.MethodPost, triggerPath+goodToken, "x", "Content-Type", "text/plain; x=\xff").
		status)
	require.Equal(t, "application/octet-stream", r.waiting.delivered[1].GetContentType())
	require.Equal(t, 200, r.do(http.MethodPost, triggerPath+goodToken, "x", "Content-Type",
		strings.Repeat("t", maxContentType+1)).status)
	require.Equal(t, "application/octet-stream", r.waiting.delivered[2].GetContentType())
	require.Equal(t, 200, r.do(http.MethodPost, triggerPath+goodToken, strings.Repeat("x", maxDelivery-1)).status)
	require.Equal(t, 400, r.do(http.MethodPost, triggerPath+goodToken, "x", "Idempotency-Key",
		strings.Repeat("x", 129)).status)
}

// FuzzDeliveryKey: whatever a header holds, the plane gets a key it can take.
func FuzzDeliveryKey(f *testing.F) {
	for _, seed := range []string{"", "a", `"a"`, "\xff", strings.Repeat("é", 200), "a\x00b"} {
		f.Add(seed, 3)
	}
	f.Fuzz(func(t *testing.T, value string, which int) {
		h := http.Header{}
		name := deliveryKeys[(which%len(deliveryKeys)+len(deliveryKeys))%len(deliveryKeys)]
		h.Set(name, value)
		key, err := deliveryKey(h)
		if err != nil {
			require.Equal(t, deliveryKeys[0], name, "only a key of the caller's own is refused")
			return
		}
		require.NoError(t, fault.RequestID(key))
		require.True(t, utf8.ValidString(key))
		again, err := deliveryKey(h)
		require.NoError(t, err)
		require.Equal(t, key, again)
	})
}
