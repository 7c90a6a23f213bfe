package secrets

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/id"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
)

const (
	// StandardSkew is how far a delivery's timestamp may be off: after that
	// somebody may be playing an old one again.
	StandardSkew = 5 * time.Minute
	// StandardPrefix begins the signing secrets of standardwebhooks.com.
	StandardPrefix = "whsec_"
	// maxSignatures bounds how many signatures of one delivery are looked at.
	// Senders send two while they change their secret.
	maxSignatures = 8
)

// VerifySignature returns SIGNATURE_INVALID unless a delivery is signed as its trigger demands (SPEC
// P3). It accepts everything for the unspecified scheme. Signatures are compared in constant
// time.
func VerifySignature(scheme waitingv1.SignatureScheme, secret string, now time.Time,
	req *waitingv1.DeliverTriggerRequest,
) error {
	switch scheme {
	case waitingv1.SignatureScheme_SIGNATURE_SCHEME_HUB_SHA256:
		return verifyHub(secret, req.GetHubSignature_256(), req.GetBody())
	case waitingv1.SignatureScheme_SIGNATURE_SCHEME_STANDARD_WEBHOOKS:
		return verifyStandard(secret, now, req)
	case waitingv1.SignatureScheme_SIGNATURE_SCHEME_UNSPECIFIED:
		return nil
	}
	// A scheme of a newer version: better closed than open.
	return fault.SignatureInvalid.New("this server does not know the signature scheme of the trigger")
}

// SignedID returns the request id of a signed delivery, which is made of what the sender signed, so
// that nobody who replays a delivery can make another one of it (SPEC P3.6): the webhook-id of
// Standard Webhooks, and the digest of the body where only that is signed. It returns "" for the
// unspecified scheme. The request memory keeps ids for 24 hours; a delivery of Standard Webhooks is
// refused long before that, because its time is signed too, but a body alone is accepted again then.
func SignedID(scheme waitingv1.SignatureScheme, req *waitingv1.DeliverTriggerRequest) string {
	switch scheme {
	case waitingv1.SignatureScheme_SIGNATURE_SCHEME_STANDARD_WEBHOOKS:
		return "signed-id:" + id.Hash(req.GetWebhookId())
	case waitingv1.SignatureScheme_SIGNATURE_SCHEME_HUB_SHA256:
		sum := sha256.Sum256(req.GetBody())
		return "signed-body:" + hex.EncodeToString(sum[:])
	case waitingv1.SignatureScheme_SIGNATURE_SCHEME_UNSPECIFIED:
	}
	return ""
}

// verifyHub checks the X-Hub-Signature-256 header of a body.
func verifyHub(secret, header string, body []byte) error {
	if header == "" {
		return fault.SignatureInvalid.New("X-Hub-Signature-256 is missing; this trigger takes signed deliveries only")
	}
	text, ok := strings.CutPrefix(header, "sha256=")
	given, err := hex.DecodeString(text)
	if !ok || err != nil || len(given) != sha256.Size {
		return fault.SignatureInvalid.New("X-Hub-Signature-256 must be sha256= and 64 hex digits")
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	if !hmac.Equal(given, mac.Sum(nil)) {
		return fault.SignatureInvalid.New("X-Hub-Signature-256 is not that of this body; is the secret the right one?")
	}
	return nil
}

// verifyStandard checks a signature of standardwebhooks.com, and that its timestamp is within
// StandardSkew of now.
func verifyStandard(secret string, now time.Time, req *waitingv1.DeliverTriggerRequest) error {
	name, stamp := req.GetWebhookId(), req.GetWebhookTimestamp()
	if name == "" || stamp == "" || req.GetWebhookSignature() == "" {
		return fault.SignatureInvalid.New("webhook-id, webhook-timestamp and webhook-signature are needed; this " +
			"trigger takes signed deliveries only")
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	// Compared as seconds: a difference of times ends at 292 years.
	if err != nil || seconds < now.Add(-StandardSkew).Unix() || seconds > now.Add(StandardSkew).Unix() {
		return fault.SignatureInvalid.New(
			"webhook-timestamp must be Unix seconds within 5 minutes of the server's clock")
	}
	key, err := StandardKey(secret)
	if err != nil {
		return fault.Internal(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(name + "." + stamp + "."))
	mac.Write(req.GetBody())
	want := mac.Sum(nil)
	for i, one := range strings.Fields(req.GetWebhookSignature()) {
		if i == maxSignatures {
			break
		}
		text, ok := strings.CutPrefix(one, "v1,")
		given, err := base64.StdEncoding.DecodeString(text)
		if ok && err == nil && hmac.Equal(given, want) {
			return nil
		}
	}
	return fault.SignatureInvalid.New("webhook-signature has no v1 signature of this delivery; is the secret the " +
		"right one?")
}

// StandardKey decodes a signing secret of the form of standardwebhooks.com.
func StandardKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, StandardPrefix)
	if !ok {
		return nil, errors.New("waiting: a signing secret does not begin with " + StandardPrefix)
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err == nil && len(key) == 0 {
		err = errors.New("waiting: a signing secret is empty")
	}
	return key, err
}
