package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
)

// object is a JSON object that keeps the order of its keys.
type object struct {
	keys   []string
	values map[string]any // *object, []any, string, json.Number, bool or nil
}

// newObject returns an empty object.
func newObject() *object { return &object{values: map[string]any{}} }

// set sets the value of a key, which stays where it is or becomes the last one.
func (o *object) set(key string, v any) {
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = v
}

// remove removes a key.
func (o *object) remove(key string) {
	delete(o.values, key)
	o.keys = slices.DeleteFunc(o.keys, func(k string) bool { return k == key })
}

// object returns the object under a key. Where there is none, it is made if create is set, and nil otherwise. Another
// value is an error.
func (o *object) object(key string, create bool) (*object, error) {
	v, ok := o.values[key]
	if !ok {
		if !create {
			return nil, nil //nolint:nilnil // there is none
		}
		made := newObject()
		o.set(key, made)
		return made, nil
	}
	found, ok := v.(*object)
	if !ok {
		return nil, fmt.Errorf("%q is no object there", key)
	}
	return found, nil
}

// list returns the list under a key; nil if there is none. Another value is an error.
func (o *object) list(key string) ([]any, error) {
	v, ok := o.values[key]
	if !ok {
		return nil, nil
	}
	found, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%q is no list there", key)
	}
	return found, nil
}

// MarshalJSON implements json.Marshaler.
func (o *object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, key := range o.keys {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, v := range []any{key, o.values[key]} {
			if j > 0 {
				b.WriteByte(':')
			}
			text, err := marshal(v)
			if err != nil {
				return nil, err
			}
			b.Write(text)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// marshal is json.Marshal that writes <, > and & as they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// maxDepth is how deep settings may be nested.
const maxDepth = 100

// parseObject reads a JSON object. An empty text is an empty object.
func parseObject(text []byte) (*object, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return newObject(), nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	v, err := parseValue(dec, 0)
	if err == nil {
		if _, e := dec.Token(); !errors.Is(e, io.EOF) {
			err = errors.New("something follows the first value")
		}
	}
	if err != nil {
		line := 1 + bytes.Count(text[:min(int(dec.InputOffset()), len(text))], []byte("\n"))
		return nil, fmt.Errorf("it is not JSON, near line %d: %w", line, err)
	}
	o, ok := v.(*object)
	if !ok {
		return nil, errors.New("it is no JSON object")
	}
	return o, nil
}

func parseValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("it is nested too deeply")
	}
	t, err := dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		o := newObject()
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			name, _ := key.(string)
			if _, twice := o.values[name]; twice {
				return nil, fmt.Errorf("the key %q is there twice", name)
			}
			v, err := parseValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			o.set(name, v)
		}
		_, err := dec.Token()
		return o, err
	case json.Delim('['):
		out := []any{}
		for dec.More() {
			v, err := parseValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		_, err := dec.Token()
		return out, err
	}
	return t, nil
}

// indents matches the indentation of the first indented line.
var indents = regexp.MustCompile(`\n([ \t]+)\S`)

// format writes an object with the indentation of the text that it replaces.
func format(o *object, like []byte) ([]byte, error) {
	indent := "  "
	if m := indents.FindSubmatch(like); m != nil {
		indent = string(m[1])
	}
	raw, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", indent); err != nil {
		return nil, err
	}
	return append(b.Bytes(), '\n'), nil
}

// equal reports whether two values are the same, whatever the order of keys.
func equal(a, b any) bool {
	switch a := a.(type) {
	case *object:
		b, ok := b.(*object)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for key, v := range a.values {
			other, ok := b.values[key]
			if !ok || !equal(v, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	}
	return a == b
}

// texts returns a list of texts as a JSON value.
func texts(all []string) []any {
	out := make([]any, len(all))
	for i, s := range all {
		out[i] = s
	}
	return out
}

// pairs returns an object with these keys and values, in this order.
func pairs(all ...any) *object {
	o := newObject()
	for i := 0; i+1 < len(all); i += 2 {
		key, _ := all[i].(string)
		o.set(key, all[i+1])
	}
	return o
}

// editMCPServers enters the server into the object mcpServers of a file, or removes it. Other keys of an entry that is
// there already, such as env, stay.
func editMCPServers(typed bool) edit {
	return func(old []byte, w wanted, remove bool) ([]byte, error) {
		top, err := parseObject(old)
		if err != nil {
			return nil, err
		}
		servers, err := top.object("mcpServers", !remove)
		if err != nil {
			return nil, err
		}
		if remove {
			if servers == nil || servers.values[serverName] == nil {
				return old, nil
			}
			if servers.remove(serverName); len(servers.keys) == 0 {
				top.remove("mcpServers")
			}
			return formatUnlessEmpty(top, old)
		}
		entry, err := servers.object(serverName, true)
		if err != nil {
			return nil, err
		}
		same := true
		put := func(key string, v any) {
			if !equal(entry.values[key], v) {
				entry.set(key, v)
				same = false
			}
		}
		if typed {
			put("type", "stdio")
		}
		put("command", w.binary)
		put("args", texts(w.mcpArgs()))
		if _, remote := entry.values["url"]; remote {
			entry.remove("url")
			same = false
		}
		if same {
			return old, nil
		}
		return format(top, old)
	}
}

// formatUnlessEmpty is format, but nil for an object without keys: nothing is left of the file.
func formatUnlessEmpty(o *object, like []byte) ([]byte, error) {
	if len(o.keys) == 0 {
		return nil, nil
	}
	return format(o, like)
}

// editHooks enters the hook at the start of a session into a file in the form of Claude Code, which Codex shares: a
// list of groups, each with a matcher and a list of hooks.
func editHooks() edit {
	const event, matcher = "SessionStart", sessionStarts
	return func(old []byte, w wanted, remove bool) ([]byte, error) {
		top, err := parseObject(old)
		if err != nil {
			return nil, err
		}
		hooks, err := top.object("hooks", !remove)
		if err != nil || hooks == nil {
			return old, err
		}
		groups, err := hooks.list(event)
		if err != nil {
			return nil, err
		}
		wanted := pairs("matcher", matcher, "hooks",
			[]any{pairs("type", "command", "command", w.hookCommand(), "timeout", json.Number("10"))})
		var kept []any
		ours := 0
		same := false
		for _, group := range groups {
			g, ok := group.(*object)
			if !ok {
				return nil, fmt.Errorf("%q has an entry that is no object", event)
			}
			inner, err := g.list("hooks")
			if err != nil {
				return nil, err
			}
			others := slices.DeleteFunc(slices.Clone(inner), isOurs)
			if len(others) == len(inner) {
				kept = append(kept, g)
				continue
			}
			ours += len(inner) - len(others)
			same = equal(g, wanted)
			if len(others) > 0 {
				g.set("hooks", others)
				kept = append(kept, g)
			}
		}
		if !remove && ours == 1 && same || remove && ours == 0 {
			return old, nil
		}
		if !remove {
			kept = append(kept, wanted)
		}
		return putEvent(top, hooks, event, kept, old)
	}
}

// editCursorHooks returns the edit of Cursor's file of hooks, which has a list of commands for each event: it makes
// Quartet's hook the only one of Quartet in the list of event, or removes it. Content nil means that nothing else is
// left.
func editCursorHooks(event string) edit {
	return func(old []byte, w wanted, remove bool) ([]byte, error) {
		top, err := parseObject(old)
		if err != nil {
			return nil, err
		}
		if remove && top.values["hooks"] == nil {
			return old, nil
		}
		if _, ok := top.values["version"]; !ok {
			top.set("version", json.Number("1"))
		}
		hooks, err := top.object("hooks", true)
		if err != nil {
			return nil, err
		}
		all, err := hooks.list(event)
		if err != nil {
			return nil, err
		}
		wanted := pairs("command", w.hookCommand())
		others := slices.DeleteFunc(slices.Clone(all), isOurs)
		ours := slices.DeleteFunc(slices.Clone(all), func(v any) bool { return !isOurs(v) })
		if !remove && len(ours) == 1 && equal(ours[0], wanted) || remove && len(ours) == 0 {
			return old, nil
		}
		if !remove {
			others = append(others, wanted)
		}
		if remove && len(others) == 0 && len(hooks.keys) == 1 && len(top.keys) == 2 {
			return nil, nil // what is left is {"version": 1, "hooks": {}}
		}
		return putEvent(top, hooks, event, others, old)
	}
}

// putEvent sets the hooks of an event to all and returns the new document. If all is empty, it removes the event, and
// what is empty without it; it returns nil if nothing is left.
func putEvent(top, hooks *object, event string, all []any, old []byte) ([]byte, error) {
	if len(all) > 0 {
		hooks.set(event, all)
		return format(top, old)
	}
	if hooks.remove(event); len(hooks.keys) == 0 {
		top.remove("hooks")
	}
	return formatUnlessEmpty(top, old)
}

// isOurs reports whether a hook runs `quartet prime`.
func isOurs(hook any) bool {
	h, ok := hook.(*object)
	if !ok {
		return false
	}
	command, _ := h.values["command"].(string)
	return primes.MatchString(command)
}

// primes matches the command of a hook that runs `quartet prime`, also of one that was written by hand.
var primes = regexp.MustCompile(`(quartet['"]?\s+prime\s)|(\sprime\s.*--hook\s+(claude|codex|cursor))`)
