package identity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	jose "github.com/go-jose/go-jose/v4"
	"go.uber.org/zap"

	"quartet/pkg/certs"
)

// maxProviderBytes bounds a document of the identity provider: its discovery or its keys.
const maxProviderBytes = 1 << 20

// strongKeys is the http.RoundTripper to an identity provider. It removes RSA keys that are shorter than
// certs.MinRSABits from key sets, so that no token is verified with one (SPEC I10): the verifier accepts
// any key of the set.
type strongKeys struct {
	next   *http.Transport
	logger *zap.Logger
}

// RoundTrip implements http.RoundTripper. It returns an error for a body that is longer than
// maxProviderBytes.
func (s *strongKeys) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxProviderBytes+1))
	_ = resp.Body.Close() // the body was read, so the error does not matter
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxProviderBytes:
		return nil, fmt.Errorf("identity: the document of %s is longer than %d bytes", req.URL.Redacted(),
			maxProviderBytes)
	}
	text = s.filter(text)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	resp.Header.Del("Content-Length")
	return resp, nil
}

// CloseIdleConnections closes idle connections, for http.Client.CloseIdleConnections.
func (s *strongKeys) CloseIdleConnections() { s.next.CloseIdleConnections() }

// filter returns a key set without the keys that are too short. Any other document, and a key that
// cannot be parsed, is returned as it is, since the verifier rejects or ignores those.
func (s *strongKeys) filter(text []byte) []byte {
	var doc map[string]json.RawMessage
	var keys []json.RawMessage
	if json.Unmarshal(text, &doc) != nil || json.Unmarshal(doc["keys"], &keys) != nil {
		return text
	}
	kept := []json.RawMessage{}
	for _, raw := range keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) == nil {
			if err := certs.CheckKey(key.Public().Key); err != nil {
				s.logger.Warn("a key of the identity provider is not used", zap.String("kid", key.KeyID),
					zap.Error(err))
				continue
			}
		}
		kept = append(kept, raw)
	}
	if len(kept) == len(keys) {
		return text
	}
	out, err := json.Marshal(map[string]any{"keys": kept})
	if err != nil {
		return text // cannot happen: the keys were parsed from JSON
	}
	return out
}
