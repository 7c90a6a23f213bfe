// Package ticket encrypts state of the console that the browser keeps, so that the console stores nothing itself.
//
// Owns: the form of a ticket: the id of a key of the installation, and JSON encrypted under a key that is derived
// from that one for the purpose of the ticket.
// Never does: decide how long a ticket is valid; that is part of its content.
// Reads: the keys of the installation that it is given.
// Emits: nothing.
package ticket

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"quartet/pkg/keyfile"
	"quartet/pkg/sealed"
)

// ErrInvalid is the error for a text that is no valid ticket: it was changed, or sealed for another purpose, by
// another installation, or with a key that was retired.
var ErrInvalid = errors.New("ticket: not valid")

// Seal returns v as JSON, encrypted for a purpose under the active key, in characters that a cookie may have. v
// should contain something random, because equal values have equal tickets.
func Seal(keys keyfile.Ring, purpose string, v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	key := keys.Active()
	box, err := sealed.Seal(key.Derive(purpose), purpose, string(text))
	if err != nil {
		return "", err
	}
	return key.ID + "." + base64.RawURLEncoding.EncodeToString(box), nil
}

// Open decrypts into v what Seal returned for the same purpose, or returns ErrInvalid.
func Open(keys keyfile.Ring, purpose, text string, v any) error {
	id, box, ok := strings.Cut(text, ".")
	key, known := keys.Find(id)
	if !ok || id == "" || !known {
		return ErrInvalid
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(box)
	if err != nil {
		return ErrInvalid
	}
	plain, err := sealed.Open(key.Derive(purpose), purpose, raw)
	if err != nil || json.Unmarshal([]byte(plain), v) != nil {
		return ErrInvalid
	}
	return nil
}
