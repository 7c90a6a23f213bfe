package bus

import (
	"bytes"
	"slices"
)

// concealed holds, by plane, the keys of the fields that are in the journal and in no event that
// leaves it: the hash of a trigger's secret and the encrypted signing secret (SPEC P3.4). The value
// of each is a string, and no payload of the plane has keys of a caller's choice.
var concealed = map[string][][]byte{
	"waiting": {[]byte(`"token_hash":"`), []byte(`"sealed_signing_secret":"`)},
}

// Conceal returns an event's JSON, or a part of it, without the fields that are for the plane itself.
// Everything that shows events outside of the journal passes them through it. text must be compact
// JSON, as journal lines are. It is not changed; where nothing is concealed it is returned itself.
func Conceal(plane string, text []byte) []byte {
	out, copied := text, false
	for _, key := range concealed[plane] {
		for from := 0; ; {
			start, end := field(out[from:], key)
			if start < 0 {
				break
			}
			if !copied {
				out, copied = bytes.Clone(out), true
			}
			out = slices.Delete(out, from+start, from+end)
			from += start
		}
	}
	return out
}

// field returns where the first field with a key is in JSON, with the comma that separates it from
// its neighbour, or -1. key includes the quotes, the colon and the quote that begins the value. A
// match that follows a brace or a comma cannot be inside of a string: there the quote of the key
// would be escaped.
func field(text, key []byte) (start, end int) {
	for at := 0; ; {
		i := bytes.Index(text[at:], key)
		if i < 0 {
			return -1, -1
		}
		start, end = at+i, at+i+len(key)
		at = end
		if start > 0 && text[start-1] != '{' && text[start-1] != ',' {
			continue
		}
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
