package signin

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"quartet/pkg/keyfile"
)

// ErrInvalidTicket is the error for a text that is no valid ticket: it was changed, or sealed for another purpose, by
// another installation, or with a key that was retired.
var ErrInvalidTicket = errors.New("ticket: not valid")

// SealTicket returns v as JSON, encrypted for a purpose under the active key, in characters that a cookie may have. v
// should contain something random, because equal values have equal tickets.
func SealTicket(keys keyfile.Ring, purpose string, v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	key := keys.Active()
	box, err := keyfile.SealSecret(key.Derive(purpose), purpose, string(text))
	if err != nil {
		return "", err
	}
	return key.ID + "." + base64.RawURLEncoding.EncodeToString(box), nil
}

// OpenTicket decrypts into v what SealTicket returned for the same purpose, or returns ErrInvalidTicket.
func OpenTicket(keys keyfile.Ring, purpose, text string, v any) error {
	id, box, ok := strings.Cut(text, ".")
	key, known := keys.Find(id)
	if !ok || id == "" || !known {
		return ErrInvalidTicket
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(box)
	if err != nil {
		return ErrInvalidTicket
	}
	plain, err := keyfile.OpenSecret(key.Derive(purpose), purpose, raw)
	if err != nil || json.Unmarshal([]byte(plain), v) != nil {
		return ErrInvalidTicket
	}
	return nil
}
