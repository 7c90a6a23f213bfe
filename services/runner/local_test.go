package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
)

func newWorkspace(t *testing.T) (*workspace, string) {
	dir := filepath.Join(t.TempDir(), "root")
	require.NoError(t, os.Mkdir(dir, 0o755))
	root := must.Value(os.OpenRoot(dir))(t)
	t.Cleanup(func() { root.Close() })
	return &workspace{root}, dir
}

func (w *workspace) call(t *testing.T, name string, args map[string]any) (map[string]any, string) {
	r := w.run(Call{ID: "c", Name: name, Arguments: must.Value(json.Marshal(args))(t)})
	require.Equal(t, "c", r.GetCallId())
	require.Equal(t, r.GetError() != nil, r.GetStatus() == agentv1.ToolStatus_TOOL_STATUS_ERROR)
	return r.GetResult().AsMap(), r.GetError().GetKind()
}

func TestWorkspaceFiles(t *testing.T) {
	w, dir := newWorkspace(t)
	_, kind := w.call(t, "WorkspaceWrite", map[string]any{"path": "a/b.txt", "text": "one\ntwo\ntwo\nfour"})
	require.Empty(t, kind)
	got, kind := w.call(t, "WorkspaceRead", map[string]any{"path": "a/b.txt", "offset": 2, "limit": 2})
	require.Empty(t, kind)
	require.Equal(t, map[string]any{
		"path": "a/b.txt", "text": "two\ntwo\n", "first_line": 2.0, "total_lines": 4.0,
		"next_offset": 4.0,
	}, got)

	_, kind = w.call(t, "WorkspaceEdit", map[string]any{"path": "a/b.txt", "old_text": "three", "new_text": "3"})
	require.Equal(t, "text_not_found", kind)
	_, kind = w.call(t, "WorkspaceEdit", map[string]any{"path": "a/b.txt", "old_text": "two", "new_text": "2"})
	require.Equal(t, "text_not_unique", kind)
	_, kind = w.call(t, "WorkspaceEdit", map[string]any{"path": "a/b.txt", "old_text": "", "new_text": "2"})
	require.Equal(t, "invalid_argument", kind)
	require.NoError(t, os.Chmod(filepath.Join(dir, "a", "b.txt"), 0o750))
	got, kind = w.call(t, "WorkspaceEdit", map[string]any{
		"path": "a/b.txt", "old_text": "two", "new_text": "2",
		"replace_all": true,
	})
	require.Empty(t, kind)
	require.InDelta(t, 2, got["replaced"], 0)
	require.Equal(t, "one\n2\n2\nfour", string(must.Value(os.ReadFile(filepath.Join(dir, "a", "b.txt")))(t)))
	st := must.Value(os.Stat(filepath.Join(dir, "a", "b.txt")))(t)
	require.EqualValues(t, 0o750, st.Mode().Perm(), "a script stays one")
	require.Len(t, must.Value(os.ReadDir(filepath.Join(dir, "a")))(t), 1, "nothing is left beside it")
}

// What a model is told to go on from follows what it was shown, whatever its
// limits did in between: it can read any file to the end, without a gap.
func TestC6_AFileIsReadWithoutAGap(t *testing.T) {
	w, _ := newWorkspace(t)
	var text strings.Builder
	for i := range 6000 {
		fmt.Fprintf(&text, "%d: if a < b && b > c { \"quoted\" }\t\x1b[0m %s\n", i, strings.Repeat("é", i%70))
	}
	_, kind := w.call(t, "WorkspaceWrite", map[string]any{"path": "large", "text": text.String()})
	require.Empty(t, kind)
	var read strings.Builder
	offset, calls := 1.0, 0
	for ; offset > 0; calls++ {
		raw := must.Value(json.Marshal(map[string]any{"path": "large", "offset": offset}))(t)
		shown := resultText(w.run(Call{ID: "c", Name: "WorkspaceRead", Arguments: raw}))
		require.NotContains(t, shown, `\u003c`)
		var got struct {
			Text string  `json:"text"`
			Next float64 `json:"next_offset"`
		}
		require.NoError(t, json.Unmarshal([]byte(shown), &got), "all of it is shown: nothing is cut off")
		read.WriteString(got.Text)
		offset = got.Next
	}
	require.Equal(t, text.String(), read.String())
	require.Less(t, calls, 20)

	// A line that is longer than all that can be shown is cut, and says so.
	_, kind = w.call(t, "WorkspaceWrite", map[string]any{"path": "minified", "text": strings.Repeat("\"x\",", 100_000) +
		"\nlast\n"})
	require.Empty(t, kind)
	got, _ := w.call(t, "WorkspaceRead", map[string]any{"path": "minified"})
	require.Contains(t, got["line_cut"], "ExecCommand")
	require.Greater(t, len(got["text"].(string)), readMax/2)
	require.LessOrEqual(t, jsonLen(got["text"].(string)), readMax)
	require.InDelta(t, 2, got["next_offset"], 0)
	got, _ = w.call(t, "WorkspaceRead", map[string]any{"path": "minified", "offset": 2})
	require.Equal(t, "last\n", got["text"])
}

// No path leaves the workspace, whatever it looks like.
func TestWorkspaceIsNotLeft(t *testing.T) {
	w, dir := newWorkspace(t)
	secret := filepath.Join(filepath.Dir(dir), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink("..", filepath.Join(dir, "up")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	for _, name := range []string{"../secret", "sub/../../secret", "link", "up/secret", secret} {
		for tool, args := range map[string]map[string]any{
			"WorkspaceRead":  {"path": name},
			"WorkspaceWrite": {"path": name, "text": "mine"},
			"WorkspaceEdit":  {"path": name, "old_text": "secret", "new_text": "mine"},
		} {
			got, kind := w.call(t, tool, args)
			require.Equal(t, "permission_denied", kind, "%s %s", tool, name)
			require.Empty(t, got)
		}
	}
	require.Equal(t, "secret", string(must.Value(os.ReadFile(secret))(t)))
}

func TestWorkspaceRefusals(t *testing.T) {
	w, _ := newWorkspace(t)
	for kind, c := range map[string]struct {
		name string
		args map[string]any
	}{
		"not_found":        {"WorkspaceRead", map[string]any{"path": "none"}},
		"not_a_file":       {"WorkspaceRead", map[string]any{"path": "."}},
		"invalid_argument": {"WorkspaceRead", map[string]any{"path": "a", "colour": "red"}},
		"limit_exceeded":   {"WorkspaceWrite", map[string]any{"path": "a", "text": strings.Repeat("x", writeMax+1)}},
	} {
		_, got := w.call(t, c.name, c.args)
		require.Equal(t, kind, got)
	}
	_, kind := w.call(t, "WorkspaceWrite", map[string]any{"path": "a", "text": strings.Repeat("x", writeMax)})
	require.Empty(t, kind)
	got, kind := w.call(t, "WorkspaceRead", map[string]any{"path": "a"})
	require.Empty(t, kind)
	text, _ := got["text"].(string)
	require.LessOrEqual(t, len(text), readMax, "what no model is shown is not kept either")
	require.NotEmpty(t, got["line_cut"])
}

// What is recorded of a call's arguments is bounded, and two long texts that differ at their end
// do not look the same.
func TestC6_LongArgumentsAreAbridged(t *testing.T) {
	text := func(n int, end string) string {
		args := abridged(map[string]any{"path": "x", "text": strings.Repeat("ä", n/2) + end, "deep": map[string]any{
			"a": 1,
		}, "limit": 3.0, "replace_all": true})
		require.Len(t, args.GetFields(), 4, "no tool takes an object")
		return args.AsMap()["text"].(string)
	}
	require.Equal(t, strings.Repeat("ä", argumentMax/2), text(argumentMax, ""))
	cut := text(argumentMax, "b")
	require.Contains(t, cut, fmt.Sprintf("… [%d bytes, sha256 ", argumentMax+1))
	require.Less(t, len(cut), argumentMax+64)
	require.NotEqual(t, cut, text(argumentMax, "c"))
}

// A pipe that a command left in the workspace does not stop the run.
func TestWorkspacePipe(t *testing.T) {
	w, dir := newWorkspace(t)
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	_, kind := w.call(t, "WorkspaceRead", map[string]any{"path": "pipe"})
	require.Equal(t, "not_a_file", kind)
	_, kind = w.call(t, "WorkspaceEdit", map[string]any{"path": "pipe", "old_text": "a", "new_text": "b"})
	require.Equal(t, "not_a_file", kind)
}
