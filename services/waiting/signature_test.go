package waiting

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/services/waiting/secrets"
)

const (
	hub      = waitingv1.SignatureScheme_SIGNATURE_SCHEME_HUB_SHA256
	standard = waitingv1.SignatureScheme_SIGNATURE_SCHEME_STANDARD_WEBHOOKS
)

func signHub(secret string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

func signStandard(key []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// The example of GitHub's documentation.
func TestP3_HubSignature(t *testing.T) {
	const secret, body = "It's a Secret to Everybody", "Hello, World!"
	const right = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	verifyHub := func(header, body string) error {
		return secrets.VerifySignature(hub, secret, epoch, &waitingv1.DeliverTriggerRequest{
			HubSignature_256: header,
			Body:             []byte(body),
		})
	}
	require.NoError(t, verifyHub(right, body))
	for name, c := range map[string]struct{ header, body string }{
		"missing": {"", body}, "another body": {right, body + "!"},
		"sha1":      {"sha1=757107ea0eb2509fc211221cce984b8a37570b6d", body},
		"no scheme": {right[7:], body}, "short": {right[:len(right)-2], body}, "no hex": {"sha256=zz", body},
		"empty":     {"sha256=", body},
		"another's": {signHub("x", []byte(body)), body},
	} {
		require.ErrorIs(t, verifyHub(c.header, c.body), fault.SignatureInvalid, name)
	}
	require.ErrorIs(t, secrets.VerifySignature(99, secret, epoch, &waitingv1.DeliverTriggerRequest{}),
		fault.SignatureInvalid, "an unknown scheme is closed")
}

// The example of standardwebhooks.com.
func TestP3_StandardWebhooksSignature(t *testing.T) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	const id, stamp, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", `{"test": 2432232314}`
	const right = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	at := time.Unix(1614265330, 0)
	req := func() *waitingv1.DeliverTriggerRequest {
		return &waitingv1.DeliverTriggerRequest{
			WebhookId: id, WebhookTimestamp: stamp, WebhookSignature: right, Body: []byte(body),
		}
	}
	require.NoError(t, secrets.VerifySignature(standard, secret, at, req()))
	require.NoError(t, secrets.VerifySignature(standard, secret, at.Add(secrets.StandardSkew), req()))
	require.NoError(t, secrets.VerifySignature(standard, secret, at.Add(-secrets.StandardSkew), req()))
	several := req()
	several.WebhookSignature = "v1a,AAAA v1,AAAA " + right
	require.NoError(t, secrets.VerifySignature(standard, secret, at, several), "two secrets while one is changed")
	for name, change := range map[string]func(*waitingv1.DeliverTriggerRequest){
		"no id":           func(r *waitingv1.DeliverTriggerRequest) { r.WebhookId = "" },
		"no time":         func(r *waitingv1.DeliverTriggerRequest) { r.WebhookTimestamp = "" },
		"no signature":    func(r *waitingv1.DeliverTriggerRequest) { r.WebhookSignature = "" },
		"another id":      func(r *waitingv1.DeliverTriggerRequest) { r.WebhookId = "msg_2" },
		"another time":    func(r *waitingv1.DeliverTriggerRequest) { r.WebhookTimestamp = "1614265331" },
		"no number":       func(r *waitingv1.DeliverTriggerRequest) { r.WebhookTimestamp = "soon" },
		"beyond all time": func(r *waitingv1.DeliverTriggerRequest) { r.WebhookTimestamp = "9223372036854775807" },
		"before all time": func(r *waitingv1.DeliverTriggerRequest) { r.WebhookTimestamp = "-9223372036854775808" },
		"another body":    func(r *waitingv1.DeliverTriggerRequest) { r.Body = []byte("x") },
		"no base64":       func(r *waitingv1.DeliverTriggerRequest) { r.WebhookSignature = "v1,!" },
		"no version":      func(r *waitingv1.DeliverTriggerRequest) { r.WebhookSignature = right[3:] },
		"asymmetric":      func(r *waitingv1.DeliverTriggerRequest) { r.WebhookSignature = "v1a," + right[3:] },
		"the ninth": func(r *waitingv1.DeliverTriggerRequest) {
			r.WebhookSignature = string(bytes.Repeat([]byte("v1,AAAA "), 8)) + right
		},
	} {
		bad := req()
		change(bad)
		require.ErrorIs(t, secrets.VerifySignature(standard, secret, at, bad), fault.SignatureInvalid, name)
	}
	for _, late := range []time.Duration{secrets.StandardSkew + time.Second, -secrets.StandardSkew - time.Second} {
		require.ErrorIs(t, secrets.VerifySignature(standard, secret, at.Add(late), req()), fault.SignatureInvalid,
			"somebody plays it again")
	}
}

// Signed deliveries through the service: bad ones leave no trace.
func TestP3_SignedDeliveries(t *testing.T) {
	r := newRig(t)
	made := must.Value(r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
		AgentId: "keeper", SignatureScheme: standard, DeliveryMode: contentful,
	}))(t)
	key := must.Value(secrets.StandardKey(made.GetSigningSecret()))(t)
	send := func(at time.Time, key []byte) (*waitingv1.DeliverTriggerResponse, error) {
		return r.service.DeliverTrigger(t.Context(), &waitingv1.DeliverTriggerRequest{
			Token: made.GetToken(), RequestId: "webhook-id:msg_1", Body: []byte("x"),
			WebhookId: "msg_1", WebhookTimestamp: strconv.FormatInt(at.Unix(), 10),
			WebhookSignature: signStandard(key, "msg_1", at, []byte("x")),
		})
	}
	before := len(r.events())
	must.Refuse(send(r.clk.Now(), []byte("guess")))(t, fault.SignatureInvalid)
	require.ErrorIs(t, r.tryDeliver(&waitingv1.DeliverTriggerRequest{Token: made.GetToken(), Body: []byte("x")}),
		fault.SignatureInvalid)
	require.Len(t, r.events(), before)
	require.Zero(t, r.listTriggers()[0].GetDeliveryCount())

	first := must.Value(send(r.clk.Now(), key))(t)
	r.clk.Advance(time.Minute)
	again := must.Value(send(r.clk.Now(), key))(t, "an attempt is signed anew, and is the same delivery")
	require.Equal(t, first.GetDeliveryId(), again.GetDeliveryId())
	require.EqualValues(t, 1, r.listTriggers()[0].GetDeliveryCount())
	r.clk.Advance(time.Hour)
	must.Refuse(send(epoch, key))(t, fault.SignatureInvalid, "a replay is refused, repeated or not")
}

// FuzzSignature: no header lets a delivery in whose sender does not have the
// secret, and none breaks anything.
func FuzzSignature(f *testing.F) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	key := must.Value(secrets.StandardKey(secret))(f)
	f.Add("sha256=00", "msg_1", "1614265330", "v1,AAAA", []byte("x"))
	f.Add(signHub(secret, []byte("x")), "msg_1", strconv.FormatInt(epoch.Unix(), 10),
		signStandard(key, "msg_1", epoch, []byte("x")), []byte("x"))
	f.Add("sha256=", "", "-1", " , v1, ,", []byte(nil))
	f.Fuzz(func(t *testing.T, hubHeader, id, stamp, header string, body []byte) {
		req := &waitingv1.DeliverTriggerRequest{
			HubSignature_256: hubHeader, WebhookId: id, WebhookTimestamp: stamp, WebhookSignature: header, Body: body,
		}
		if secrets.VerifySignature(hub, secret, epoch, req) == nil {
			given := must.Value(hex.DecodeString(hubHeader[len("sha256="):]))(t)
			require.Equal(t, must.Value(hex.DecodeString(signHub(secret, body)[len("sha256="):]))(t), given)
		}
		if secrets.VerifySignature(standard, secret, epoch, req) == nil {
			seconds := must.Value(strconv.ParseInt(stamp, 10, 64))(t)
			mac := hmac.New(sha256.New, key)
			mac.Write([]byte(id + "." + stamp + "." + string(body)))
			require.Contains(t, header, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
			require.LessOrEqual(t, time.Unix(seconds, 0).Sub(epoch).Abs(), secrets.StandardSkew+time.Second)
		}
	})
}

// What is signed decides what is a repetition: nothing that a replayer can add or change makes
// another delivery of one that was accepted.
func TestP3_AReplayIsNoNewDelivery(t *testing.T) {
	for name, scheme := range map[string]waitingv1.SignatureScheme{"standard": standard, "hub": hub} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			made, err := r.service.CreateExternalTrigger(r.agent(), &waitingv1.CreateExternalTriggerRequest{
				AgentId: "keeper", SignatureScheme: scheme, DeliveryMode: contentful,
			})
			require.NoError(t, err)
			sign := func(id, body string) *waitingv1.DeliverTriggerRequest {
				req := &waitingv1.DeliverTriggerRequest{
					Token: made.GetToken(), Body: []byte(body), ContentType: "application/json",
				}
				if scheme == hub {
					req.HubSignature_256 = signHub(made.GetSigningSecret(), req.GetBody())
					return req
				}
				key := must.Value(secrets.StandardKey(made.GetSigningSecret()))(t)
				req.WebhookId, req.WebhookTimestamp = id, strconv.FormatInt(r.clk.Now().Unix(), 10)
				req.WebhookSignature = signStandard(key, id, r.clk.Now(), req.GetBody())
				return req
			}
			first := must.Value(r.service.DeliverTrigger(t.Context(), sign("msg_1", "one")))(t)
			for _, change := range []func(*waitingv1.DeliverTriggerRequest){
				func(*waitingv1.DeliverTriggerRequest) {},
				func(req *waitingv1.DeliverTriggerRequest) { req.RequestId = "mine" },
				func(req *waitingv1.DeliverTriggerRequest) { req.RequestId = "mine-2" },
				func(req *waitingv1.DeliverTriggerRequest) { req.RequestId = "x-github-delivery:other" },
				func(req *waitingv1.DeliverTriggerRequest) { req.ContentType = "text/plain" },
				func(req *waitingv1.DeliverTriggerRequest) {
					if scheme == hub {
						req.WebhookId, req.WebhookTimestamp = "msg_other", "1"
						req.HubSignature_256 = strings.ToUpper(req.GetHubSignature_256()[len("sha256="):])
						req.HubSignature_256 = "sha256=" + req.GetHubSignature_256()
					} else {
						req.HubSignature_256, req.WebhookSignature = "sha256=00", "v1,AAAA "+req.GetWebhookSignature()
					}
				},
			} {
				again := sign("msg_1", "one")
				change(again)
				resp := must.Value(r.service.DeliverTrigger(t.Context(), again))(t)
				require.Equal(t, first.GetDeliveryId(), resp.GetDeliveryId())
				r.restart()
			}
			require.EqualValues(t, 1, r.listTriggers()[0].GetDeliveryCount())
			second := must.Value(r.service.DeliverTrigger(t.Context(), sign("msg_2", "two")))(t)
			require.NotEqual(t, first.GetDeliveryId(), second.GetDeliveryId())
			require.EqualValues(t, 2, r.listTriggers()[0].GetDeliveryCount())

			// The age: a time that is signed, and else the digest for as long as requests are remembered.
			old := sign("msg_3", "three")
			must.Value(r.service.DeliverTrigger(t.Context(), old))(t)
			for _, after := range []time.Duration{24*time.Hour - time.Second, 2 * time.Second} {
				r.clk.Advance(after)
				_, err = r.service.DeliverTrigger(t.Context(), old)
				if scheme == standard {
					require.ErrorIs(t, err, fault.SignatureInvalid)
				} else {
					require.NoError(t, err)
				}
			}
			want := int64(3)
			if scheme == hub {
				want = 4
			}
			require.Equal(t, want, r.listTriggers()[0].GetDeliveryCount(),
				"one that is older than 24 hours is not recognised by its body alone")
		})
	}
}
