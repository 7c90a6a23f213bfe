package setup

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// tableName is the table of the server in the settings of Codex.
const tableName = "mcp_servers"

// statement is a part of a TOML document: a header such as [a.b], or a key with its value.
type statement struct {
	header     bool
	path       []string // of the header, or the key
	start, end int      // without the line feed
}

// editTOML enters the server into mcp_servers of a file of Codex, or removes it. The text around the changed lines
// stays as it is, comments included. The result is read again: everything else in it must be what it was.
func editTOML(old []byte, w wanted, remove bool) ([]byte, error) {
	before, err := parseTOML(old)
	if err != nil {
		return nil, fmt.Errorf("it is not TOML: %w", err)
	}
	entry := serverIn(before)
	args := texts(w.mcpArgs())
	if remove && entry == nil || !remove && entry != nil && entry["command"] == w.binary &&
		reflect.DeepEqual(entry["args"], args) {
		return old, nil
	}
	all, err := statements(old)
	if err != nil {
		return nil, err
	}
	var next []byte
	if remove {
		next = withoutTable(old, all)
	} else {
		lines := map[string]string{"command": "command = " + quoteTOML(w.binary)}
		quoted := make([]string, len(args))
		for i, a := range w.mcpArgs() {
			quoted[i] = quoteTOML(a)
		}
		lines["args"] = "args = [" + strings.Join(quoted, ", ") + "]"
		next = withTable(old, all, lines)
	}
	after, err := parseTOML(next)
	if err != nil {
		return nil, errElsewhere
	}
	got := serverIn(after)
	if remove != (got == nil) || !remove && (got["command"] != w.binary || !reflect.DeepEqual(got["args"], args)) {
		return nil, errElsewhere
	}
	if !reflect.DeepEqual(others(before), others(after)) {
		return nil, errElsewhere
	}
	if len(bytes.TrimSpace(next)) == 0 {
		return nil, nil
	}
	return next, nil
}

// errElsewhere is the error of a file that says the same in another way, such as with an inline table.
var errElsewhere = errors.New("it has " + tableName + " in a form that cannot be edited here; write it as a table [" +
	tableName + "." + serverName + "]")

// parseTOML reads a document.
func parseTOML(text []byte) (map[string]any, error) {
	out := map[string]any{}
	if err := toml.Unmarshal(text, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// serverIn returns the entry of the server; nil if there is none.
func serverIn(doc map[string]any) map[string]any {
	servers, _ := doc[tableName].(map[string]any)
	entry, _ := servers[serverName].(map[string]any)
	return entry
}

// others returns a document without what this package writes.
func others(doc map[string]any) map[string]any {
	out := map[string]any{}
	for key, v := range doc {
		servers, ok := v.(map[string]any)
		if key != tableName || !ok {
			out[key] = v
			continue
		}
		rest := map[string]any{}
		for name, entry := range servers {
			if name != serverName {
				rest[name] = entry
			}
		}
		if len(rest) > 0 {
			out[key] = rest
		}
	}
	return out
}

// isTable reports whether a statement is the header of the server's table or, if below is set, of a table within it.
func (s statement) isTable(below bool) bool {
	return s.header && len(s.path) >= 2 && s.path[0] == tableName && s.path[1] == serverName &&
		(len(s.path) == 2 || below)
}

// withTable returns the document with the lines in the table of the server: in place of those with the same key, else
// after the header. A table that is missing is added at the end.
func withTable(old []byte, all []statement, lines map[string]string) []byte {
	at := -1
	for i, s := range all {
		if s.isTable(false) {
			at = i
		}
	}
	if at < 0 {
		out := bytes.TrimRight(old, " \t\r\n")
		if len(out) > 0 {
			out = append(bytes.Clone(out), "\n\n"...)
		}
		return fmt.Appendf(out, "[%s.%s]\n%s\n%s\n", tableName, serverName, lines["command"], lines["args"])
	}
	last := at + 1
	for last < len(all) && !all[last].header {
		last++
	}
	var out []byte
	written := map[string]bool{}
	done := 0
	for _, s := range all[at+1 : last] {
		if len(s.path) != 1 || lines[s.path[0]] == "" {
			continue
		}
		out = append(append(out, old[done:s.start]...), lines[s.path[0]]...)
		done, written[s.path[0]] = s.end, true
	}
	out = append(out, old[done:]...)
	var missing string
	for _, key := range []string{"command", "args"} {
		if !written[key] {
			missing += "\n" + lines[key]
		}
	}
	// The header comes before everything that was replaced.
	end := all[at].end
	return append(append(bytes.Clone(out[:end]), missing...), out[end:]...)
}

// withoutTable returns the document without the table of the server and the tables below it.
func withoutTable(old []byte, all []statement) []byte {
	var out []byte
	done := 0
	for i := 0; i < len(all); {
		if !all[i].isTable(true) {
			i++
			continue
		}
		start, end := all[i].start, all[i].end
		for i++; i < len(all) && (!all[i].header || all[i].isTable(true)); i++ {
			end = all[i].end
		}
		out = append(out, old[done:start]...)
		if n := bytes.IndexByte(old[end:], '\n'); n >= 0 {
			end += n + 1
		} else {
			end = len(old)
		}
		// The empty line that came before the table goes with it.
		if bytes.HasSuffix(out, []byte("\n\n")) {
			out = out[:len(out)-1]
		}
		for len(out) == 0 && end < len(old) && old[end] == '\n' {
			end++
		}
		done = end
	}
	return append(out, old[done:]...)
}

// quoteTOML returns a basic string.
func quoteTOML(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// statements returns the statements of a document that parses, in order.
func statements(text []byte) ([]statement, error) {
	var all []statement
	for i := 0; i < len(text); {
		switch text[i] {
		case ' ', '\t', '\r', '\n':
			i++
		case '#':
			i = lineEnd(text, i)
		case '[':
			end := i
			path, err := keys(text, &end, "[", "]")
			if err != nil {
				return nil, err
			}
			all = append(all, statement{header: true, path: path, start: i, end: end})
			i = lineEnd(text, end)
		default:
			end := i
			path, err := keys(text, &end, "", "=")
			if err != nil {
				return nil, err
			}
			if end, err = skipValue(text, end); err != nil {
				return nil, err
			}
			all = append(all, statement{path: path, start: i, end: end})
			i = lineEnd(text, end)
		}
	}
	return all, nil
}

// lineEnd returns the position of the line feed that ends the line of i, or the end of the text.
func lineEnd(text []byte, i int) int {
	if n := bytes.IndexByte(text[i:], '\n'); n >= 0 {
		return i + n
	}
	return len(text)
}

// errLost is the error of a text whose statements cannot be told apart. The parser has accepted it, so it is not
// expected.
var errLost = errors.New("its statements cannot be told apart")

// keys reads a dotted key between opening and closing characters, and moves at behind it.
func keys(text []byte, at *int, open, closing string) ([]string, error) {
	i := *at
	for strings.HasPrefix(string(text[i:min(i+1, len(text))]), open) && open != "" {
		i++
	}
	var path []string
	var word strings.Builder
	for ; i < len(text) && text[i] != '\n'; i++ {
		switch c := text[i]; {
		case c == '"' || c == '\'':
			end := i + 1
			for end < len(text) && text[end] != c && text[end] != '\n' {
				if c == '"' && text[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(text) || text[end] != c {
				return nil, errLost
			}
			word.Write(text[i+1 : end])
			i = end
		case c == '.':
			path = append(path, word.String())
			word.Reset()
		case string(c) == closing:
			path = append(path, word.String())
			for i < len(text) && string(text[i]) == closing {
				i++
			}
			*at = i
			return path, nil
		case c != ' ' && c != '\t':
			word.WriteByte(c)
		}
	}
	return nil, errLost
}

// skipValue returns the end of the value that begins at i: at the end of its line, unless brackets, braces or a string
// of several lines are open there.
func skipValue(text []byte, i int) (int, error) {
	depth, end := 0, i
	for i < len(text) {
		switch c := text[i]; c {
		case '\n':
			if depth == 0 {
				return end, nil
			}
			i++
		case '#':
			i = lineEnd(text, i)
		case '"', '\'':
			next, err := skipString(text, i)
			if err != nil {
				return 0, err
			}
			i, end = next, next
		default:
			switch c {
			case '[', '{':
				depth++
			case ']', '}':
				depth--
			}
			i++
			if c != ' ' && c != '\t' && c != '\r' {
				end = i
			}
		}
	}
	return end, nil
}

// skipString returns the position behind the string that begins at i.
func skipString(text []byte, i int) (int, error) {
	quote := text[i]
	if triple := bytes.Repeat([]byte{quote}, 3); bytes.HasPrefix(text[i:], triple) {
		for j := i + 3; j < len(text); j++ {
			if quote == '"' && text[j] == '\\' {
				j++
				continue
			}
			if bytes.HasPrefix(text[j:], triple) {
				j += 3
				// quotes before the end belong to the string
				for n := 0; n < 2 && j < len(text) && text[j] == quote; n++ {
					j++
				}
				return j, nil
			}
		}
		return 0, errLost
	}
	for j := i + 1; j < len(text) && text[j] != '\n'; j++ {
		if quote == '"' && text[j] == '\\' {
			j++
			continue
		}
		if text[j] == quote {
			return j + 1, nil
		}
	}
	return 0, errLost
}
