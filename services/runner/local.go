package runner

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/pkg/utf8cut"
)

// readMax limits the result of one WorkspaceRead in the model's context, so that the
// result is never cut before its next_offset. writeMax limits the size of a file.
const (
	readMax  = resultMax - 2<<10
	writeMax = 4 << 20
)

// workspace implements the file tools that the runner executes itself, because the
// agent's files may be on this machine only. No path leads out of root, not even through
// links.
type workspace struct{ root *os.Root }

// localTools are the descriptions of the local tools.
var localTools = []Tool{
	{
		Name: "WorkspaceRead", Description: "Read a text file of the workspace. Lines are numbered from 1; offset " +
			"and limit count lines.",
		Schema: schema([]string{"path"}, map[string]any{
			"path":   property("string", "Relative to the workspace."),
			"offset": property("integer", "First line; default 1."),
			"limit":  property("integer", "Lines at most; default 2000."),
		}),
	},
	{
		Name: "WorkspaceWrite", Description: "Write a whole text file of the workspace. Directories are made. To " +
			"change a part of a file use WorkspaceEdit.",
		Schema: schema([]string{"path", "text"}, map[string]any{
			"path": property("string", "Relative to the workspace."),
			"text": property("string", "All of its text."),
		}),
	},
	{
		Name: "WorkspaceEdit", Description: "Replace an exact piece of text in a file of the workspace. It must " +
			"stand there once, unless replace_all is set.",
		Schema: schema([]string{"path", "old_text", "new_text"}, map[string]any{
			"path":        property("string", "Relative to the workspace."),
			"old_text":    property("string", "What stands there, exactly."),
			"new_text":    property("string", "What is to stand there."),
			"replace_all": property("boolean", "Replace every occurrence."),
		}),
	},
}

// property returns the schema of one argument.
func property(kind, about string) map[string]any {
	return map[string]any{"type": kind, "description": about}
}

// schema returns the JSON Schema of a tool's arguments.
func schema(required []string, properties map[string]any) map[string]any {
	list := make([]any, len(required))
	for i, r := range required {
		list[i] = r
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties, "required": list}
}

// argumentMax limits a text argument in the journal, in bytes. The rest of a file that is written
// is in the file.
const argumentMax = 2 << 10

// abridged returns the arguments of a local call as they are recorded: of a text that is too
// long the beginning, length and hash. Values of types that no local tool takes are left out.
func abridged(args map[string]any) *structpb.Struct {
	out := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for name, value := range args {
		switch value := value.(type) {
		case string:
			value = strings.ToValidUTF8(value, "\uFFFD")
			if len(value) > argumentMax {
				value = fmt.Sprintf("%s… [%d bytes, sha256 %.8x]", utf8cut.Bytes(value, argumentMax), len(value),
					sha256.Sum256([]byte(value)))
			}
			out.Fields[name] = structpb.NewStringValue(value)
		case float64:
			out.Fields[name] = structpb.NewNumberValue(value)
		case bool:
			out.Fields[name] = structpb.NewBoolValue(value)
		}
	}
	return out
}

// changesFiles reports whether the local tool with a name changes files. The name must be that of a local tool.
func changesFiles(name string) bool { return name != "WorkspaceRead" }

// isLocal reports whether a tool is a local one.
func isLocal(name string) bool {
	for _, t := range localTools {
		if t.Name == name {
			return true
		}
	}
	return false
}

// fileArguments holds the arguments of all local tools.
type fileArguments struct {
	Path       string `json:"path"`
	Text       string `json:"text"`
	OldText    string `json:"old_text"`
	NewText    string `json:"new_text"`
	ReplaceAll bool   `json:"replace_all"`
	Offset     int    `json:"offset"`
	Limit      int    `json:"limit"`
}

// localError is a failure that a model can correct.
type localError struct{ kind, text string }

func (e *localError) Error() string { return e.text }

// run executes a call of a local tool. It always returns a result, which may be an error.
func (w *workspace) run(c Call) *agentv1.ToolResult {
	var args fileArguments
	d := json.NewDecoder(strings.NewReader(string(c.Arguments)))
	d.DisallowUnknownFields()
	if err := d.Decode(&args); err != nil {
		return failedLocal(c,
			&localError{"invalid_argument", fmt.Sprintf("the arguments do not fit the schema of %s: %v", c.Name, err)})
	}
	var out map[string]any
	name, err := clean(args.Path)
	if err == nil {
		switch c.Name {
		case "WorkspaceRead":
			out, err = w.read(name, args)
		case "WorkspaceWrite":
			out, err = w.write(name, args)
		default:
			out, err = w.edit(name, args)
		}
	}
	if err != nil {
		return failedLocal(c, err)
	}
	result, err := structpb.NewStruct(out)
	if err != nil {
		return failedLocal(c, err)
	}
	return &agentv1.ToolResult{
		CallId: c.ID, ToolName: c.Name, Status: agentv1.ToolStatus_TOOL_STATUS_SUCCESS,
		SummaryText: c.Name + " succeeded: " + name, Result: result,
	}
}

// failedLocal returns the result of a call that failed.
func failedLocal(c Call, err error) *agentv1.ToolResult {
	e := &agentv1.ToolError{Kind: "internal", Message: err.Error()}
	var own *localError
	var p *fs.PathError
	switch {
	case errors.As(err, &own):
		e.Kind = own.kind
	case errors.Is(err, fs.ErrNotExist):
		e.Kind, e.RecoveryHint = "not_found", "list the directory with ExecCommand, and give the path relative to "+
			"the workspace"
	case errors.Is(err, fs.ErrPermission), errors.As(err, &p) && strings.Contains(p.Err.Error(), "escapes"):
		e.Kind, e.RecoveryHint = "permission_denied", "only files below the workspace can be read and written"
	}
	return &agentv1.ToolResult{
		CallId: c.ID, ToolName: c.Name, Status: agentv1.ToolStatus_TOOL_STATUS_ERROR,
		SummaryText: e.GetMessage(), Error: e,
	}
}

// clean normalises a path as models write it, and refuses empty and absolute ones. It does not
// refuse .., because no path leads out of the workspace's root.
func clean(name string) (string, error) {
	if name == "" {
		return "", &localError{"invalid_argument", "path is empty; give one relative to the workspace"}
	}
	if filepath.IsAbs(name) {
		return "", &localError{"permission_denied", fmt.Sprintf("path %q is absolute; give one relative to the "+
			"workspace", name)}
	}
	return path.Clean(filepath.ToSlash(name)), nil
}

// load returns the content of a regular file. It refuses a file of more than writeMax bytes with limit_exceeded,
// and anything that is not a regular file with not_a_file.
func (w *workspace) load(name string) (string, error) {
	f, err := w.root.OpenFile(name, os.O_RDONLY|nonblocking, 0) // a pipe would block
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", &localError{"not_a_file", fmt.Sprintf("%q is not a regular file", name)}
	}
	b, err := io.ReadAll(io.LimitReader(f, writeMax+1))
	if len(b) > writeMax {
		return "", &localError{"limit_exceeded", fmt.Sprintf("%q is larger than %d bytes; read a part of it with "+
			"ExecCommand", name, writeMax)}
	}
	return string(b), err
}

// read executes WorkspaceRead. It returns whole lines as long as they fit readMax; only a
// first line that is too long is cut.
func (w *workspace) read(name string, args fileArguments) (map[string]any, error) {
	text, err := w.load(name)
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(text, "\n")
	if n := len(lines); lines[n-1] == "" {
		lines = lines[:n-1]
	}
	first, limit := max(args.Offset, 1), args.Limit
	if limit <= 0 {
		limit = 2000
	}
	out := map[string]any{"path": name, "first_line": first, "total_lines": len(lines)}
	var b strings.Builder
	next, room := first, readMax-jsonLen(name)
	for ; next <= len(lines) && next < first+limit; next++ {
		line := strings.ToValidUTF8(lines[next-1], "\uFFFD")
		if room -= jsonLen(line); room < 0 {
			if next == first { // a single line is too long
				line, out["line_cut"] = prefix(line, readMax-jsonLen(name)),
					"the line continues; read it with ExecCommand"
				b.WriteString(line)
				next++
			}
			break
		}
		b.WriteString(line)
	}
	out["text"] = b.String()
	if next <= len(lines) {
		out["next_offset"] = next
	}
	return out, nil
}

// jsonLen returns the length of a text within JSON, as the model sees it.
func jsonLen(text string) int { return len(compact(text)) - len(`""`) }

// prefix returns the longest beginning of a text, in whole characters, that takes at most room
// bytes in JSON.
func prefix(text string, room int) string {
	for i, r := range text {
		if room -= jsonLen(string(r)); room < 0 {
			return text[:i]
		}
	}
	return text
}

// write executes WorkspaceWrite: it writes the file name as a whole and makes its directories.
func (w *workspace) write(name string, args fileArguments) (map[string]any, error) {
	if len(args.Text) > writeMax {
		return nil, &localError{"limit_exceeded", fmt.Sprintf("text has %d bytes; %d is the most", len(args.Text),
			writeMax)}
	}
	if dir := path.Dir(name); dir != "." {
		if err := w.root.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := w.save(name, args.Text); err != nil {
		return nil, err
	}
	return map[string]any{"path": name, "bytes": len(args.Text)}, nil
}

// edit executes WorkspaceEdit: it replaces old_text in the file name by new_text. If old_text
// occurs more than once and replace_all is not set, that is an error.
func (w *workspace) edit(name string, args fileArguments) (map[string]any, error) {
	text, err := w.load(name)
	if err != nil {
		return nil, err
	}
	n := strings.Count(text, args.OldText)
	switch {
	case args.OldText == "":
		return nil, &localError{"invalid_argument", "old_text is empty; WorkspaceWrite writes whole files"}
	case n == 0:
		return nil, &localError{"text_not_found", fmt.Sprintf("%q does not contain old_text exactly as given; read "+
			"the file again", name)}
	case n > 1 && !args.ReplaceAll:
		return nil, &localError{"text_not_unique", fmt.Sprintf("%q contains old_text %d times; give more of the "+
			"surrounding text, or set replace_all", name, n)}
	}
	if err := w.save(name, strings.ReplaceAll(text, args.OldText, args.NewText)); err != nil {
		return nil, err
	}
	return map[string]any{"path": name, "replaced": n}, nil
}

// save writes a file in place of any that is there; a file that exists keeps its mode. A
// concurrent reader sees the old or the new content, except through a symbolic link: its
// target is written in place, so that the link stays.
func (w *workspace) save(name, text string) error {
	mode := fs.FileMode(0o644)
	if st, err := w.root.Stat(name); err == nil {
		if !st.Mode().IsRegular() {
			return &localError{"not_a_file", fmt.Sprintf("%q is not a regular file", name)}
		}
		mode = st.Mode().Perm()
	}
	if st, err := w.root.Lstat(name); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		return w.root.WriteFile(name, []byte(text), mode) // written through the link, which is kept
	}
	temporary := path.Join(path.Dir(name), "."+path.Base(name)+".quartet-new")
	if err := w.root.WriteFile(temporary, []byte(text), mode); err != nil {
		return err
	}
	if err := w.root.Rename(temporary, name); err != nil {
		return errors.Join(err, w.root.Remove(temporary))
	}
	return nil
}
