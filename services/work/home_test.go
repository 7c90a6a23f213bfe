package work

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/work/homes"
)

func (r *rig) files() workv1.HomeServiceClient {
	r.t.Helper()
	return workv1.NewHomeServiceClient(must.Value(r.conn())(r.t))
}

// dir is keeper's home on disk.
func (r *rig) dir() string { return filepath.Join(r.home, "acme", "keeper") }

func (r *rig) write(p, text, expected string) (*workv1.WriteFileResponse, error) {
	return r.files().WriteFile(r.ctx, &workv1.WriteFileRequest{
		AgentId: "keeper", Path: p, Text: text, ExpectedSha256: expected,
	})
}

func TestA11_WriteReadEditListGrep(t *testing.T) {
	r := newRig(t)
	none := must.Value(r.files().ListFiles(r.ctx, &workv1.ListFilesRequest{AgentId: "keeper", Recursive: true}))(t)
	require.Empty(t, none.GetFiles(), "a home that was never written to is empty")

	w := must.Value(r.write("notes/a/one.md", "first line\nsecond line\n", homes.Absent))(t)
	require.True(t, w.GetCreated())
	onDisk := must.Value(os.ReadFile(filepath.Join(r.dir(), "notes/a/one.md")))(t)
	require.Equal(t, "first line\nsecond line\n", string(onDisk))

	got, err := r.files().ReadFile(r.ctx, &workv1.ReadFileRequest{AgentId: "keeper", Path: "notes//a/./one.md"})
	require.NoError(t, err)
	require.Equal(t, string(onDisk), got.GetText())
	require.Equal(t, w.GetFile().GetSha256(), got.GetFile().GetSha256())
	require.Zero(t, got.GetNextOffset())

	e := must.Value(r.files().EditFile(r.ctx, &workv1.EditFileRequest{
		AgentId: "keeper", Path: "notes/a/one.md", OldText: "line", NewText: "row", ReplaceAll: true,
		ExpectedSha256: got.GetFile().GetSha256(),
	}))(t)
	require.EqualValues(t, 2, e.GetReplaced())
	must.Value(r.write("b.txt", "a row", ""))(t)
	must.Value(r.files().WriteFile(r.ctx, &workv1.WriteFileRequest{
		AgentId: "keeper", Path: "binary", Data: []byte{0, 1, 2},
	}))(t)

	var all []string
	token := ""
	for {
		page := must.Value(r.files().ListFiles(r.ctx, &workv1.ListFilesRequest{
			AgentId: "keeper", Recursive: true, PageSize: 2, PageToken: token,
		}))(t)
		for _, f := range page.GetFiles() {
			all = append(all, f.GetPath())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	require.Equal(t, []string{"b.txt", "binary", "notes", "notes/a", "notes/a/one.md"}, all)

	found := must.Value(r.files().GrepFiles(r.ctx, &workv1.GrepFilesRequest{
		AgentId: "keeper", Pattern: `\brow\b`, Glob: "*.md",
	}))(t)
	require.Len(t, found.GetMatches(), 2)
	require.Equal(t, "second row", found.GetMatches()[1].GetText())
	require.EqualValues(t, 2, found.GetMatches()[1].GetLine())
	found, err = r.files().GrepFiles(r.ctx, &workv1.GrepFilesRequest{AgentId: "keeper", Pattern: "row", MaxMatches: 2})
	require.NoError(t, err)
	require.True(t, found.GetTruncated())
	found = must.Value(r.files().GrepFiles(r.ctx, &workv1.GrepFilesRequest{AgentId: "keeper", Pattern: "."}))(t)
	require.EqualValues(t, 1, found.GetSkipped(), "the binary file")

	// Events tell of every write, with what it was before.
	var written []*workv1.HomeFileWritten
	for _, ev := range r.events() {
		if p, ok := ev.Payload.(*workv1.HomeFileWritten); ok {
			written = append(written, p)
		}
	}
	require.Len(t, written, 4)
	require.Equal(t, w.GetFile().GetSha256(), written[1].GetPreviousSha256())
}

// What is cut is cut between characters, and reads that go on miss nothing.
func TestA11_ReadInPieces(t *testing.T) {
	r := newRig(t)
	text := strings.Repeat("aé漢🙂", 1000)
	must.Value(r.write("t", text, ""))(t)
	for _, limit := range []int32{4, 5, 7, 4096} {
		var b strings.Builder
		var at int64
		for {
			got := must.Value(r.files().ReadFile(r.ctx, &workv1.ReadFileRequest{
				AgentId: "keeper", Path: "t", Offset: at, Limit: limit,
			}))(t)
			require.Empty(t, got.GetData(), "limit %d, offset %d", limit, at)
			b.WriteString(got.GetText())
			if at = got.GetNextOffset(); at == 0 {
				break
			}
		}
		require.Equal(t, text, b.String(), "limit %d", limit)
	}
}

func TestA11_NoPathLeavesTheHome(t *testing.T) {
	r := newRig(t)
	must.Value(r.write("in/file", "mine", ""))(t)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("not yours"), 0o600))
	neighbour := filepath.Join(r.home, "acme", "other")
	require.NoError(t, os.MkdirAll(neighbour, 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(neighbour, "file"), []byte("theirs"), 0o600))
	for name, to := range map[string]string{
		"link-abs": secret, "link-up": "../other/file", "dir-abs": filepath.Dir(secret), "dir-up": "../other",
		"loop": "loop", "inside": "in/file",
	} {
		require.NoError(t, os.Symlink(to, filepath.Join(r.dir(), name)))
	}
	require.NoError(t, syscall.Mkfifo(filepath.Join(r.dir(), "pipe"), 0o600))

	for p, reason := range map[string]error{
		"/etc/passwd": fault.PathOutsideHome, "../other/file": fault.PathOutsideHome,
		"in/../../other/file": fault.PathOutsideHome, "in/..": fault.PathOutsideHome,
		"link-abs": fault.PathOutsideHome, "link-up": fault.PathOutsideHome, "dir-abs/secret": fault.PathOutsideHome,
		"dir-up/file": fault.PathOutsideHome,
		"loop":        fault.NotAFile, "pipe": fault.NotAFile, "in": fault.NotAFile, "in/file/below": fault.NotAFile,
		".": fault.NotAFile, "missing": fault.NotFound,
		"": fault.InvalidArgument, "nul\x00": fault.InvalidArgument, "bad\xff": fault.InvalidArgument,
		".quartet-x":             fault.InvalidArgument,
		strings.Repeat("x", 255): fault.NotFound, strings.Repeat("x", 256): fault.InvalidArgument,
		strings.Repeat("x/", 511) + "xx": fault.NotFound, strings.Repeat("x/", 512) + "x": fault.LimitExceeded,
		strings.Repeat("x", 4096): fault.LimitExceeded,
	} {
		_, err := r.files().ReadFile(r.ctx, &workv1.ReadFileRequest{AgentId: "keeper", Path: p})
		if strings.ContainsRune(p, 0xFFFD) || p == "bad\xff" { // protobuf refuses it before the service sees it
			require.Error(t, err)
			continue
		}
		require.ErrorIs(t, err, reason, "read %.40q", p)
	}
	before := len(r.events())
	for _, p := range []string{
		"/abs", "../other/file", "link-abs/x", "dir-abs/new", "dir-up/new", "in/file/below",
		"in", ".",
	} {
		require.Error(t, must.Err(r.write(p, "x", "")), p)
	}
	require.Len(t, r.events(), before, "a refusal leaves no event")
	require.Len(t, must.Value(os.ReadDir(filepath.Dir(secret)))(t), 1)
	require.Equal(t, "theirs", string(must.Value(os.ReadFile(filepath.Join(neighbour, "file")))(t)))

	// A link within the home may be read; writing puts a file in its place.
	got := must.Value(r.files().ReadFile(r.ctx, &workv1.ReadFileRequest{AgentId: "keeper", Path: "inside"}))(t)
	require.Equal(t, "mine", got.GetText())
	// Writing over a link that leads out replaces the link and touches nothing outside.
	must.Value(r.files().GrepFiles(r.ctx, &workv1.GrepFilesRequest{AgentId: "keeper", Pattern: "yours"}))(t)

	for _, who := range []struct {
		agent  string
		reason error
	}{{"other", fault.PermissionDenied}, {"nobody", fault.PermissionDenied}} {
		must.Refuse(r.files().ReadFile(r.ctx, &workv1.ReadFileRequest{AgentId: who.agent, Path: "file"}))(t, who.reason)
	}
}

func TestA11_PreconditionsAndLimits(t *testing.T) {
	r := newRig(t)
	w := must.Value(r.write("f", "one", ""))(t)
	_, err := r.write("f", "two", homes.Absent)
	require.ErrorIs(t, err, fault.HashMismatch)
	require.Equal(t, w.GetFile().GetSha256(), fault.From(err).Metadata()["sha256"])
	must.Refuse(r.write("f", "two", strings.Repeat("0", 64)))(t, fault.HashMismatch)
	must.Refuse(r.write("g", "two", strings.Repeat("0", 64)))(t, fault.HashMismatch)
	must.Refuse(r.write("f", "two", "ABC"))(t, fault.InvalidArgument)
	must.Value(r.write("f", "two", w.GetFile().GetSha256()))(t)

	for n, want := range map[int]error{homes.MaxFileBytes - 1: nil, homes.MaxFileBytes: nil, homes.MaxFileBytes +
		1: fault.TooLarge} {
		must.Refuse(r.files().WriteFile(r.ctx, &workv1.WriteFileRequest{
			AgentId: "keeper", Path: "big", Data: make([]byte, n),
		}))(t, want, "%d bytes", n)
	}
	edit := func(old, next string, all bool) error {
		return must.Err(r.files().EditFile(r.ctx, &workv1.EditFileRequest{
			AgentId: "keeper", Path: "f", OldText: old, NewText: next, ReplaceAll: all,
		}))
	}
	must.Value(r.write("f", "aXbXc", ""))(t)
	require.ErrorIs(t, edit("Y", "Z", false), fault.TextNotFound)
	require.ErrorIs(t, edit("X", "Z", false), fault.TextNotUnique)
	require.ErrorIs(t, edit("X", "X", true), fault.InvalidArgument)
	require.ErrorIs(t, edit("", "X", true), fault.InvalidArgument)
	require.NoError(t, edit("aX", "", false))
	for _, req := range []*workv1.GrepFilesRequest{
		{Pattern: "("},
		{Pattern: ""},
		{Pattern: "x", Glob: "["},
		{Pattern: "x", MaxMatches: 501},
		{Pattern: "x", MaxMatches: -1},
	} {
		req.AgentId = "keeper"
		_, err := r.files().GrepFiles(r.ctx, req)
		require.ErrorIs(t, err, fault.From(err).Reason())
		require.NotErrorIs(t, err, fault.InternalError)
		require.Error(t, err)
	}
}

// The same request is done once, also after somebody else wrote and after a
// restart (SPEC X2).
func TestX2_A11_RepeatedWrites(t *testing.T) {
	r := newRig(t)
	must.Value(r.write("f", "x", ""))(t)
	edit := func() (*workv1.EditFileResponse, bool, error) {
		var resp *workv1.EditFileResponse
		again, err := replayed(func(opts ...grpc.CallOption) error {
			var err error
			resp, err = r.files().EditFile(r.ctx, &workv1.EditFileRequest{
				AgentId: "keeper", RequestId: "once", Path: "f", OldText: "x", NewText: "xx",
			}, opts...)
			return err
		})
		return resp, again, err
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, _, err := edit(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	on := must.Value(os.ReadFile(filepath.Join(r.dir(), "f")))(t)
	require.Equal(t, "xx", string(on))
	must.Value(r.write("f", "somebody else's", ""))(t)
	r.restart()
	first, again, err := edit()
	require.NoError(t, err)
	require.True(t, again)
	require.EqualValues(t, 1, first.GetReplaced())
	on = must.Value(os.ReadFile(filepath.Join(r.dir(), "f")))(t)
	require.Equal(t, "somebody else's", string(on))
	must.Refuse(r.files().EditFile(r.ctx, &workv1.EditFileRequest{
		AgentId: "keeper", RequestId: "once", Path: "f", OldText: "x", NewText: "y",
	}))(t, fault.RequestIDReused)
}

// TestA11_ASearchHasABudget: a search that has read, visited or taken as much as it may stops, and says after
// which file; one within its budget searches everything; one whose caller has left ends.
func TestA11_ASearchHasABudget(t *testing.T) {
	if testing.Short() {
		t.Skip("go test -short leaves this out; make test runs it")
	}
	r := newRig(t)
	must.Value(r.write("a/000.md", "needle\n", homes.Absent))(t)
	line := strings.Repeat("x", 1023) + "\n" // few lines, which the race detector slows down
	large := bytes.Repeat([]byte(line), maxLarge/len(line))
	for i := range homes.SearchBytes/maxLarge - 1 {
		require.NoError(t, os.WriteFile(filepath.Join(r.dir(), "a", fmt.Sprintf("%03d.md", i+1)), large, 0o600))
	}
	grep := func() *workv1.GrepFilesResponse {
		found, err := r.files().GrepFiles(r.ctx, &workv1.GrepFilesRequest{AgentId: "keeper", Pattern: "needle"})
		require.NoError(t, err)
		return found
	}
	require.NoError(t, os.WriteFile(filepath.Join(r.dir(), "a", "900.md"), []byte("needle\n"), 0o600))
	below := grep()
	require.Len(t, below.GetMatches(), 2)
	require.Empty(t, below.GetStoppedAfter())
	require.False(t, below.GetTruncated())

	require.NoError(t, os.WriteFile(filepath.Join(r.dir(), "a", "100.md"), large, 0o600))
	above := grep()
	require.Len(t, above.GetMatches(), 1)
	require.Equal(t, "a/100.md", above.GetStoppedAfter())
	require.True(t, above.GetTruncated())
	require.Len(t, grepOf(t, r, "a/900.md").GetMatches(), 1, "a part of it can be searched")

	gone, cancel := context.WithCancel(r.ctx)
	cancel()
	_, err := r.service.GrepFiles(gone, &workv1.GrepFilesRequest{AgentId: "keeper", Pattern: "needle"})
	require.Error(t, err)
}

func grepOf(t *testing.T, r *rig, path string) *workv1.GrepFilesResponse {
	t.Helper()
	found, err := r.files().GrepFiles(r.ctx, &workv1.GrepFilesRequest{AgentId: "keeper", Pattern: "needle", Path: path})
	require.NoError(t, err)
	return found
}

// maxLarge is the size of the largest file that is searched.
const maxLarge = 4 << 20
