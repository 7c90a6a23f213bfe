package bus

import (
	"bytes"
	"slices"
)

// concealed has, by plane, the keys of the fields that events have in the journal and must not have outside
// of it: the hash of a trigger's secret and the encrypted signing secret (SPEC P3.4). The values of
// these fields must be strings, and callers must not be able to choose keys in payloads of these planes.
var concealed = map[string][][]byte{
	"waiting": {[]byte(`"token_hash":"`), []byte(`"sealed_signing_secret":"`)},
}

// Conceal returns an event's JSON, or a part of it, without the concealed fields of the plane. Code that
// shows events outside of the journal must pass them through Conceal. text must be compact JSON, as
// journal lines are. Conceal does not change text; if text has no such field, it returns text itself.
func Conceal(plane string, text []byte) []byte {
	out, copied := text, false
	for _, key := range concealed[plane] {
		for offset := 0; ; {
			start, end := findField(out[offset:], key)
			if start < 0 {
				break
			}
			if !copied {
				out, copied = bytes.Clone(out), true
			}
			out = slices.Delete(out, offset+start, offset+end)
			offset += start
		}
	}
	return out
}

// findField returns where the first field with a key begins and ends in text, including the comma that separates
// it from its neighbour; -1 and -1 if there is none. key includes the quotes, the colon and the quote that
// begins the value. A match directly after a brace or a comma is not inside of a string, because the first
// quote of key would be escaped there.
func findField(text, key []byte) (start, end int) {
	for offset := 0; ; {
		i := bytes.Index(text[offset:], key)
		if i < 0 {
			return -1, -1
		}
		start, end = offset+i, offset+i+len(key)
		offset = end
		if start > 0 && text[start-1] != '{' && text[start-1] != ',' {
			continue
		}

		// Find the quote that ends the value, and take one comma.
		for end < len(text) && text[end] != '"' {
			if text[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end+1, len(text))
		switch {
		case end < len(text) && text[end] == ',':
			end++
		case start > 0 && text[start-1] == ',':
			start--
		}
		return start, end
	}
}
