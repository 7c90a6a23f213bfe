package setup

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// editTOML enters the server into mcp_servers of a file of Codex, or removes it, where that file is empty or as setup
// wrote it. Any other file is read and never written: then the error is a byHand.
func editTOML(old []byte, w wanted, remove bool) ([]byte, error) {
	var doc struct {
		Servers map[string]struct {
			Command string   `toml:"command"`
			Args    []string `toml:"args"`
		} `toml:"mcp_servers"`
	}
	if err := toml.Unmarshal(old, &doc); err != nil {
		return nil, fmt.Errorf("it is no TOML with a table mcp_servers: %w", err)
	}
	entry, exists := doc.Servers[serverName]
	written := tomlServer(entry.Command, entry.Args)
	next := tomlServer(w.binary, w.mcpArgs())
	switch {
	case remove && !exists, !remove && exists && bytes.Equal(written, next):
		return old, nil
	case remove && bytes.Equal(old, written):
		return nil, nil
	case !remove && (len(bytes.TrimSpace(old)) == 0 || bytes.Equal(old, written)):
		return next, nil
	}
	return nil, byHand{exists}
}

// tomlServer returns the table of the server in TOML.
func tomlServer(command string, args []string) []byte {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = quoteTOML(a)
	}
	return fmt.Appendf(nil, "[mcp_servers.%s]\ncommand = %s\nargs = [%s]\n", serverName, quoteTOML(command),
		strings.Join(quoted, ", "))
}

// quoteTOML returns a text as a basic string of TOML.
func quoteTOML(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
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
