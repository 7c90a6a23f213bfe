package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
)

// object is a JSON object: its members in their order, each with its value as it is in the text.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

// parseObject reads a JSON object. An empty text is an object without members. A key that is there twice is an error.
func parseObject(text []byte) (object, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	o, err := decodeObject(dec)
	if err == nil {
		if _, e := dec.Token(); !errors.Is(e, io.EOF) {
			err = errors.New("something follows the first value")
		}
	}
	if err != nil {
		line := 1 + bytes.Count(text[:min(int(dec.InputOffset()), len(text))], []byte("\n"))
		return nil, fmt.Errorf("it is no JSON object, near line %d: %w", line, err)
	}
	return o, nil
}

func decodeObject(dec *json.Decoder) (object, error) {
	begin, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if begin != json.Delim('{') {
		return nil, errors.New("it does not begin with {")
	}
	var o object
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m := member{}
		m.key, _ = key.(string)
		if o.get(m.key) != nil {
			return nil, fmt.Errorf("the key %q is there twice", m.key)
		}
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		o = append(o, m)
	}
	_, err = dec.Token()
	return o, err
}

// get returns the value of a key; nil if there is none.
func (o object) get(key string) json.RawMessage {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// set sets the value of a key, which stays where it is or becomes the last one.
func (o *object) set(key string, value json.RawMessage) {
	for i := range *o {
		if (*o)[i].key == key {
			(*o)[i].value = value
			return
		}
	}
	*o = append(*o, member{key, value})
}

// put sets the value of a key, or removes the key if the value is empty.
func (o *object) put(key string, value json.RawMessage) {
	if text := string(value); text == "{}" || text == "[]" || text == "null" {
		o.remove(key)
	} else {
		o.set(key, value)
	}
}

func (o *object) remove(key string) {
	*o = slices.DeleteFunc(*o, func(m member) bool { return m.key == key })
}

// object returns the object under a key, without members if there is none. Another value is an error.
func (o object) object(key string) (object, error) {
	value := o.get(key)
	if value == nil {
		return nil, nil
	}
	found, err := parseObject(value)
	if err != nil {
		return nil, fmt.Errorf("%q is no object there: %w", key, err)
	}
	return found, nil
}

// list returns the list under a key; nil if there is none. Another value is an error.
func (o object) list(key string) ([]json.RawMessage, error) {
	value := o.get(key)
	if value == nil {
		return nil, nil
	}
	if value[0] != '[' {
		return nil, fmt.Errorf("%q is no list there", key)
	}
	var out []json.RawMessage
	return out, json.Unmarshal(value, &out)
}

// text returns the object as JSON.
func (o object) text() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(quote(m.key))
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// quote returns a text, or a list of texts or values, as JSON, with <, > and & as they are.
func quote[T string | []string | []json.RawMessage](v T) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // neither texts nor values that were read have errors
	return bytes.TrimRight(b.Bytes(), "\n")
}

// indents matches the indentation of the first indented line.
var indents = regexp.MustCompile(`\n([ \t]+)\S`)

// format writes an object with the indentation of the text that it replaces. It returns nil for an object without
// members: nothing is left of the file.
func format(o object, like []byte) ([]byte, error) {
	if len(o) == 0 {
		return nil, nil
	}
	indent := "  "
	if m := indents.FindSubmatch(like); m != nil {
		indent = string(m[1])
	}
	var b bytes.Buffer
	if err := json.Indent(&b, o.text(), "", indent); err != nil {
		return nil, err
	}
	return append(b.Bytes(), '\n'), nil
}

// sameJSON reports whether two documents of JSON have the same values. It is false if one is no JSON.
func sameJSON(a, b []byte) bool {
	var values [2]any
	for i, text := range [][]byte{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if !json.Valid(text) || d.Decode(&values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

// editMCPServers enters the server into the object mcpServers of a file, or removes it. Other keys of an entry that is
// there already, such as env, stay.
func editMCPServers(typed bool) edit {
	return func(old []byte, w wanted, remove bool) ([]byte, error) {
		top, err := parseObject(old)
		if err != nil {
			return nil, err
		}
		servers, err := top.object("mcpServers")
		if err != nil {
			return nil, err
		}
		if remove {
			if servers.get(serverName) == nil {
				return old, nil
			}
			servers.remove(serverName)
			top.put("mcpServers", servers.text())
			return format(top, old)
		}
		entry, err := servers.object(serverName)
		if err != nil {
			return nil, err
		}
		before := entry.text()
		if typed {
			entry.set("type", quote("stdio"))
		}
		entry.set("command", quote(w.binary))
		entry.set("args", quote(w.mcpArgs()))
		entry.remove("url")
		if sameJSON(before, entry.text()) {
			return old, nil
		}
		servers.set(serverName, entry.text())
		top.set("mcpServers", servers.text())
		return format(top, old)
	}
}

// editHooks enters the hook at the start of a session into a file in the form of Claude Code, which Codex shares: a
// list of groups, each with a matcher and a list of hooks.
func editHooks(old []byte, w wanted, remove bool) ([]byte, error) {
	group := fmt.Appendf(nil, `{"matcher":%s,"hooks":[{"type":"command","command":%s,"timeout":10}]}`,
		quote(sessionStarts), quote(w.hookCommand()))
	return editEvent(old, "SessionStart", group, remove, func(g json.RawMessage) (json.RawMessage, int, error) {
		o, err := parseObject(g)
		if err != nil {
			return nil, 0, err
		}
		hooks, err := o.list("hooks")
		if err != nil {
			return nil, 0, err
		}
		others := slices.DeleteFunc(slices.Clone(hooks), isOurs)
		switch found := len(hooks) - len(others); {
		case found == 0:
			return g, 0, nil
		case len(others) == 0:
			return nil, found, nil
		default:
			o.set("hooks", quote(others))
			return o.text(), found, nil
		}
	})
}

// editCursorHooks enters the hook into Cursor's file of hooks, which has a list of commands for each event.
func editCursorHooks(old []byte, w wanted, remove bool) ([]byte, error) {
	top, err := parseObject(old)
	if err != nil {
		return nil, err
	}
	versioned := old
	if top.get("version") == nil && !remove {
		top.set("version", json.RawMessage("1"))
		versioned = top.text()
	}
	hook := slices.Concat([]byte(`{"command":`), quote(w.hookCommand()), []byte("}"))
	next, err := editEvent(versioned, "sessionStart", hook, remove,
		func(h json.RawMessage) (json.RawMessage, int, error) {
			if isOurs(h) {
				return nil, 1, nil
			}
			return h, 0, nil
		})
	switch {
	case err != nil:
		return nil, err
	case bytes.Equal(next, versioned):
		return old, nil
	case remove && sameJSON(next, []byte(`{"version": 1}`)):
		return nil, nil // nothing else is left
	}
	top, err = parseObject(next)
	if err != nil {
		return nil, err
	}
	return format(top, old)
}

// editEvent makes ours the only entry of Quartet in the list of hooks of an event, or removes it. without returns an
// entry of that list without Quartet's hooks, nil if nothing is left of it, and how many there were.
func editEvent(
	old []byte, event string, ours json.RawMessage, remove bool,
	without func(json.RawMessage) (rest json.RawMessage, found int, err error),
) ([]byte, error) {
	top, err := parseObject(old)
	if err != nil {
		return nil, err
	}
	hooks, err := top.object("hooks")
	if err != nil {
		return nil, err
	}
	entries, err := hooks.list(event)
	if err != nil {
		return nil, err
	}
	var kept []json.RawMessage
	found, same := 0, false
	for _, e := range entries {
		rest, n, err := without(e)
		if err != nil {
			return nil, fmt.Errorf("in %q: %w", event, err)
		}
		found += n
		same = same || sameJSON(e, ours)
		if rest != nil {
			kept = append(kept, rest)
		}
	}
	if remove && found == 0 || !remove && found == 1 && same {
		return old, nil
	}
	if !remove {
		kept = append(kept, ours)
	}
	hooks.put(event, quote(kept))
	top.put("hooks", hooks.text())
	return format(top, old)
}

// isOurs reports whether a hook runs `quartet prime`.
func isOurs(hook json.RawMessage) bool {
	var h struct{ Command any }
	if json.Unmarshal(hook, &h) != nil {
		return false
	}
	command, _ := h.Command.(string)
	return primes.MatchString(command)
}

// primes matches the command of a hook that runs `quartet prime`, also of one that was written by hand.
var primes = regexp.MustCompile(`(quartet['"]?\s+prime\s)|(\sprime\s.*--hook\s+(claude|codex|cursor))`)
