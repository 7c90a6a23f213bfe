// Package page implements the rules of lists (SPEC X9): the size of a page, and opaque tokens
// that say where the next page begins.
//
// A token contains the position of an entry in the order of the list, such as its id, and not an offset.
// So no entry is skipped or repeated when records are written between two pages.
package page

import (
	"encoding/base64"
	"strings"

	"quartet/pkg/fault"
)

const (
	// DefaultSize is the page size of a request without page_size.
	DefaultSize = 50
	// MaxSize is the largest page size.
	MaxSize = 500
	// MaxBytes bounds a page in bytes, well below the 4 MiB that a gRPC client receives by
	// default.
	MaxBytes = 2 << 20

	separator = "\x1f"
)

// List is a requested page of a list whose entries are ordered by id.
type List struct {
	Size  int    // how many entries the page may have, 1 to MaxSize
	After string // id of the last entry of the page before; "" for the first page
	kind  string
}

// Read checks page_size and page_token of a request for the list called kind, and returns the page. It returns
// LIMIT_EXCEEDED or CURSOR_INVALID if one is not valid.
func Read(kind string, req interface {
	GetPageSize() int32
	GetPageToken() string
},
) (List, error) {
	size, err := Size(req.GetPageSize(), 0)
	if err != nil {
		return List{}, err
	}
	from, err := Position(kind, req.GetPageToken(), 1)
	if err != nil || from == nil {
		return List{Size: size, kind: kind}, err
	}
	return List{Size: size, After: from[0], kind: kind}, nil
}

// Next returns the token of the page after the entry with this id.
func (l List) Next(last string) string { return Token(l.kind, last) }

// Size returns the page size for a page_size: def for 0, or DefaultSize if def is 0 too.
func Size(n int32, def int) (int, error) {
	switch {
	case n < 0 || n > MaxSize:
		return 0, fault.LimitExceeded.Newf("page_size is %d; it must be 0 to %d", n, MaxSize).
			WithField("page_size", "must be 0 to 500")
	case n == 0 && def > 0:
		return def, nil
	case n == 0:
		return DefaultSize, nil
	}
	return int(n), nil
}

// Token returns an opaque token for a position. kind names the list, so that a token of another
// list is refused.
func Token(kind string, position ...string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind + separator + strings.Join(position, separator)))
}

// Position returns the position in a token of the list called kind, which must have the given number of parts. For
// an empty token, which means the beginning of the list, it returns nil. It returns CURSOR_INVALID for any other
// text.
func Position(kind, token string, parts int) ([]string, error) {
	if token == "" {
		return nil, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(token) > 1024 {
		return nil, invalid(token)
	}
	fields := strings.Split(string(raw), separator)
	if fields[0] != kind || len(fields) != parts+1 {
		return nil, invalid(token)
	}
	return fields[1:], nil
}

func invalid(token string) error {
	if len(token) > 64 {
		token = token[:64] + "…"
	}
	return fault.CursorInvalid.Newf("page_token %q was not made by this list; leave it empty to begin at the start",
		token).
		WithField("page_token", "must be a next_page_token of the same call")
}
