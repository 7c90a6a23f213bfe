package homes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
	"pgregory.net/rapid"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// open returns the directory of all homes and the home of keeper in it.
func open(t *testing.T) (*Dir, *Home) {
	t.Helper()
	d := must.Value(OpenDir(t.TempDir()))(t)
	t.Cleanup(func() { _ = d.Close() })
	h := must.Value(d.Open("acme", "keeper", true))(t)
	t.Cleanup(h.Close)
	return d, h
}

func sha(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func TestA11_AHomeIsMadeOnTheFirstWriteOnly(t *testing.T) {
	d := must.Value(OpenDir(filepath.Join(t.TempDir(), "new", "homes")))(t)
	defer d.Close()
	must.Refuse(d.Open("acme", "keeper", false))(t, fs.ErrNotExist)
	h := must.Value(d.Open("acme", "keeper", true))(t)
	defer h.Close()
	again := must.Value(d.Open("acme", "keeper", false))(t)
	again.Close()
}

// A plan that is removed because it is empty, and is written by another program at that moment, is there afterwards.
func TestW2_WhatIsWrittenWhileAnEmptyPlanIsRemovedStays(t *testing.T) {
	d, h := open(t)
	p := NewPlans(d)
	p.discards.SetLimit(rate.Inf)
	paths, kept := make([]string, 100), map[string]bool{}
	for n := range paths {
		itemID := fmt.Sprint("wi_", n)
		h.ensurePlan(planName(itemID))
		paths[n] = filepath.Join(h.path, planName(itemID))
		written := make(chan error)
		go func() { written <- os.WriteFile(paths[n], []byte("a plan"), 0o600) }()
		p.Discard("acme", "keeper", itemID)
		kept[paths[n]] = <-written == nil
	}
	left := func() int {
		return len(must.Value(os.ReadDir(filepath.Join(h.path, "work-items")))(t))
	}
	before := left()
	p.clear(time.Now().Add(-asideTerm))
	require.Equal(t, before, left(), "they are kept aside for a while")
	p.clear(time.Now())
	for path, was := range kept {
		if !was {
			require.NoDirExists(t, filepath.Dir(path))
			continue
		}
		require.Equal(t, "a plan", string(must.Value(os.ReadFile(path))(t)))
	}
	require.Empty(t, p.aside)
}

// A plan that was written while it was kept aside is there for who looks at its item, also after the process has ended,
// and when the process stops.
func TestW2_APlanThatIsKeptAsideIsSeen(t *testing.T) {
	d, h := open(t)
	p := NewPlans(d)
	written := func(itemID string) {
		h.ensurePlan(planName(itemID))
		f := must.Value(os.OpenFile(filepath.Join(h.path, planName(itemID)), os.O_WRONLY|os.O_APPEND, 0))(t)
		p.Discard("acme", "keeper", itemID)
		_, err := f.WriteString("a plan")
		require.NoError(t, errors.Join(err, f.Close()))
	}
	written("wi_1")
	it := &workv1.WorkItem{WorkItemId: "wi_1", AgentId: "keeper", State: workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED}
	NewPlans(d).Attach("acme", it, AsIs) // of the next process
	require.Equal(t, sha("a plan"), it.GetPlanArtifact().GetSha256())

	written("wi_2")
	h.ensurePlan(planName("wi_3"))
	p.Discard("acme", "keeper", "wi_3")
	p.Close()
	require.FileExists(t, filepath.Join(h.path, planName("wi_2")))
	must.Refuse(h.root.Lstat(asideName("wi_3")))(t, fs.ErrNotExist)
}

// Somebody who opened the empty plan before it was removed may write to it afterwards: it comes back, unless there is
// another one by then.
func TestW2_APlanThatWasOpenComesBack(t *testing.T) {
	d, h := open(t)
	p := NewPlans(d)
	for itemID, other := range map[string]bool{"wi_1": false, "wi_2": true} {
		h.ensurePlan(planName(itemID))
		path := filepath.Join(h.path, planName(itemID))
		f := must.Value(os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0))(t)
		p.Discard("acme", "keeper", itemID)
		require.NoDirExists(t, filepath.Dir(path))
		_, err := f.WriteString("a plan")
		require.NoError(t, errors.Join(err, f.Close()))
		want := "a plan"
		if other {
			want = "another plan"
			must.Value(h.Write(PlanPath(itemID), []byte(want), 0o640, "x"))(t)
		}
		p.clear(time.Now())
		require.Equal(t, want, string(must.Value(os.ReadFile(path))(t)))
		_, err = h.root.Lstat(asideName(itemID))
		require.Equal(t, other, err == nil, "what cannot be put back stays aside")
	}
}

func TestA11_WriteReplacesTheWholeFile(t *testing.T) {
	_, h := open(t)
	for i, text := range []string{"a longer text", "short", ""} {
		st := must.Value(h.Write("notes/today/list.md", []byte(text), 0o640, "x"))(t)
		require.EqualValues(t, len(text), st.Size())
		require.Equal(t, text, string(must.Value(h.ReadAll("notes/today/list.md"))(t)), "write %d", i)
		sum, mode, err := h.Hash("notes/today/list.md")
		require.NoError(t, err)
		require.Equal(t, sha(text), sum)
		require.EqualValues(t, 0o640, mode)
	}
	entries := must.Value(os.ReadDir(filepath.Join(h.path, "notes", "today")))(t)
	require.Len(t, entries, 1, "no temporary file is left")
}

func TestA11_AFailedWriteLeavesNothing(t *testing.T) {
	_, h := open(t)
	require.NoError(t, os.Mkdir(filepath.Join(h.path, "list.md"), 0o750))
	_, err := h.Write("list.md", []byte("text"), 0o640, "x")
	require.Error(t, err)
	require.ErrorIs(t, Error("list.md", err), fault.NotAFile)
	require.Len(t, must.Value(os.ReadDir(h.path))(t), 1)
}

func TestA11_ReadAllIsBounded(t *testing.T) {
	_, h := open(t)
	for size, ok := range map[int]bool{MaxFileBytes - 1: true, MaxFileBytes: true, MaxFileBytes + 1: false} {
		must.Value(h.Write("f", bytes.Repeat([]byte("x"), size), 0o640, "x"))(t)
		got, err := h.ReadAll("f")
		if !ok {
			require.ErrorIs(t, err, fault.TooLarge)
			continue
		}
		require.NoError(t, err)
		require.Len(t, got, size)
	}
}

func TestA11_OnlyRegularFilesInsideTheHomeAreRead(t *testing.T) {
	d, h := open(t)
	other := must.Value(d.Open("umbrella", "victim", true))(t)
	defer other.Close()
	must.Value(other.Write("secret", []byte("hunter2"), 0o640, "x"))(t)
	require.NoError(t, os.Symlink("../../umbrella/victim/secret", filepath.Join(h.path, "relative")))
	require.NoError(t, os.Symlink(filepath.Join(other.path, "secret"), filepath.Join(h.path, "absolute")))
	require.NoError(t, os.Symlink("../../umbrella/victim", filepath.Join(h.path, "folder")))
	require.NoError(t, os.Symlink("loop", filepath.Join(h.path, "loop")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(h.path, "pipe"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(h.path, "dir"), 0o700))
	for p, want := range map[string]fault.Reason{
		"relative": fault.PathOutsideHome, "absolute": fault.PathOutsideHome, "folder/secret": fault.PathOutsideHome,
		"loop": fault.NotAFile, "pipe": fault.NotAFile, "dir": fault.NotAFile, "dir/none": fault.NotFound,
		"none": fault.NotFound,
	} {
		_, _, err := h.File(p)
		require.ErrorIs(t, err, want, p)
	}
	var none *Home
	_, _, err := none.File("list.md")
	require.ErrorIs(t, err, fault.NotFound)
	none.Close()
}

func TestA11_PathsAreValidated(t *testing.T) {
	for p, want := range map[string]string{
		"a": "a", "./a//b/": "a/b", ".": ".",
		strings.Repeat("n", 255): strings.Repeat("n", 255), strings.Repeat("a/", 511) + "bc": strings.Repeat("a/",
			511) + "bc",
	} {
		got := must.Value(Path("path", p))(t, p)
		require.Equal(t, want, got)
	}
	for p, want := range map[string]fault.Reason{
		"": fault.InvalidArgument, "/etc/passwd": fault.PathOutsideHome, "..": fault.PathOutsideHome,
		"a/../../b":              fault.PathOutsideHome,
		strings.Repeat("n", 256): fault.InvalidArgument, ".quartet-x": fault.InvalidArgument,
		"a/.quartet-x/b":                fault.InvalidArgument,
		strings.Repeat("a/", 512) + "b": fault.LimitExceeded, "a\x00b": fault.InvalidArgument,
	} {
		must.Refuse(Path("path", p))(t, want, "%q", p)
	}
}

func TestA11_WalkVisitsInOrderAndContinues(t *testing.T) {
	_, h := open(t)
	for _, p := range []string{"b", "a/x", "a/y/z", "a-b", "c/d", ".quartet-tmp"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(h.path, p)), 0o750))
		require.NoError(t, os.WriteFile(filepath.Join(h.path, p), []byte(p), 0o600))
	}
	require.NoError(t, os.Symlink("a", filepath.Join(h.path, "link")))
	visited := func(start string, depth int, after string, most int) (got []string) {
		require.NoError(t, h.Walk(t.Context(), start, depth, after, func(e Entry) error {
			if len(got) == most {
				return ErrStop
			}
			got = append(got, e.Path)
			return nil
		}))
		return got
	}
	all := []string{"a", "a/x", "a/y", "a/y/z", "a-b", "b", "c", "c/d", "link"}
	require.Equal(t, all, visited(".", MaxDepth, "", 100))
	require.Equal(t, []string{"a", "a-b", "b", "c", "link"}, visited(".", 1, "", 100))
	require.Equal(t, []string{"a/x", "a/y"}, visited("a", 1, "", 100))
	require.Equal(t, []string{"b"}, visited("b", 1, "", 100))
	require.Empty(t, visited("b", 1, "b", 100))
	for size := 1; size <= len(all); size++ {
		var got []string
		for after := ""; ; {
			page := visited(".", MaxDepth, after, size)
			if len(page) == 0 {
				break
			}
			got, after = append(got, page...), page[len(page)-1]
		}
		require.Equal(t, all, got, "pages of %d", size)
	}
	require.ErrorIs(t, h.Walk(t.Context(), "none", 1, "", nil), fault.NotFound)
	mine := errors.New("mine")
	require.ErrorIs(t, h.Walk(t.Context(), ".", 1, "", func(Entry) error { return mine }), mine)
	var none *Home
	require.NoError(t, none.Walk(t.Context(), ".", 1, "", nil))
	require.ErrorIs(t, none.Walk(t.Context(), "a", 1, "", nil), fault.NotFound)
}

// plans returns plans with an item whose plan file was made.
func plans(t *testing.T) (p *Plans, it *workv1.WorkItem, path string) {
	t.Helper()
	d, _ := open(t)
	p = NewPlans(d)
	it = &workv1.WorkItem{WorkItemId: "wi_1", AgentId: "keeper", State: workv1.WorkItemState_WORK_ITEM_STATE_OPEN}
	p.Attach("acme", it, Ensured)
	require.Empty(t, it.GetPlanArtifact().GetProblem())
	return p, it, it.GetPlanArtifact().GetPath()
}

// An edit in place that keeps the size and gives the file its old time back, as some
// synchronisation tools do, is seen on the next read.
func TestW3_AnEditInPlaceIsSeenThoughSizeAndTimeAreTheSame(t *testing.T) {
	p, it, path := plans(t)
	old := time.Now().Add(-time.Hour)
	write := func(text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(path, old, old))
	}
	preview := func() string {
		p.Attach("acme", it, AsIs)
		return it.GetPlanArtifact().GetPreview()
	}
	write("AAAA")
	require.Equal(t, "AAAA", preview())
	require.Eventually(t, func() bool {
		st, err := os.Lstat(path)
		return err == nil && unambiguous(st)
	}, time.Minute, time.Millisecond, "then the descriptor is cached")
	require.Equal(t, "AAAA", preview())
	write("BBBB")
	require.Equal(t, "BBBB", preview())
}

func TestW3_APlanBeyondTheLimitIsShownAndNotHashed(t *testing.T) {
	p, it, path := plans(t)
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("é", 5000)), 0o600))
	require.NoError(t, os.Truncate(path, maxPlanBytes+1))
	p.Attach("acme", it, AsIs)
	a := it.GetPlanArtifact()
	require.Equal(t, "too_large", a.GetProblem())
	require.EqualValues(t, maxPlanBytes+1, a.GetBytes())
	require.Empty(t, a.GetSha256())
	require.Equal(t, strings.Repeat("é", 1600), a.GetPreview())
	require.False(t, a.GetPreviewComplete())
}

// A pipe that replaces the file between the lookup and the opening is neither read nor
// waited for.
func TestW3_AFileThatIsReplacedIsNotWaitedFor(t *testing.T) {
	p, _, path := plans(t)
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
	st := must.Value(os.Lstat(path))(t)
	require.NoError(t, os.Remove(path))
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	h := must.Value(p.dir.Open("acme", "keeper", false))(t)
	defer h.Close()
	require.Equal(t, "unreadable", h.readPlan(planName("wi_1"), st).GetProblem())
}

func TestW3_TheCacheOfDescriptorsIsBounded(t *testing.T) {
	p, _, _ := plans(t)
	for i := range planCacheEntries + 10 {
		p.store(item{"acme", string(rune(i))}, described{})
	}
	require.Len(t, p.cache, planCacheEntries)
}

// Text is recognised however it is divided into reads.
func TestW3_TextIsKnownAcrossReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var body []byte
		if rapid.Bool().Draw(t, "text") {
			body = []byte(rapid.StringOf(rapid.RuneFrom([]rune("aé世🙂\x00"))).Draw(t, "runes"))
		} else {
			body = rapid.SliceOf(rapid.SampledFrom([]byte{
				'a', 0xc3, 0xa9, 0xe4, 0xb8, 0x96, 0xf0, 0x9f, 0x99, 0x82,
				0xff, 0,
			})).Draw(t, "bytes")
		}
		sum := textSum{sum: sha256.New()}
		for rest := body; len(rest) > 0; {
			n := rapid.IntRange(1, min(len(rest), 5)).Draw(t, "read")
			require.Equal(t, n, must.Value(sum.Write(rest[:n]))(t))
			rest = rest[n:]
		}
		text := utf8.Valid(body) && bytes.IndexByte(body, 0) < 0
		require.Equal(t, text, !sum.binary && len(sum.rest) == 0, "%q", body)
		if text {
			require.Equal(t, string(body), string(sum.head))
		}
		want := sha256.Sum256(body)
		require.Equal(t, want[:], sum.sum.Sum(nil))
	})
}

// TestA11_TheBudgetOfASearch: a search stops at each of its limits, and not below.
func TestA11_TheBudgetOfASearch(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	at := now
	s := Search{Now: func() time.Time { return at }}
	require.False(t, s.spent())
	at = now.Add(searchTime - 1)
	s.files, s.bytes = searchFiles-1, SearchBytes-1
	require.False(t, s.spent())
	at = now.Add(searchTime)
	require.True(t, s.spent())
	at = now
	s.files++
	require.True(t, s.spent())
	s.files, s.bytes = 0, SearchBytes
	require.True(t, s.spent())
}

// A search that ends at its limit says after which file, also if no file was one of the glob.
func TestA11_ASearchThatOnlyVisitsSaysWhereItEnded(t *testing.T) {
	_, h := open(t)
	info := must.Value(h.Write("a.log", []byte("needle\n"), 0o600, "1"))(t)
	s := &Search{Pattern: regexp.MustCompile("needle"), Glob: "*.md", Most: 10, Now: func() time.Time {
		return time.Unix(0, 0)
	}}
	for i := range searchFiles {
		require.NoError(t, s.Visit(t.Context(), Entry{Path: fmt.Sprintf("%d.log", i), Info: info}))
	}
	require.Empty(t, s.Found.GetStoppedAfter())
	require.ErrorIs(t, s.Visit(t.Context(), Entry{Path: "z.md", Info: info}), ErrStop)
	require.Equal(t, fmt.Sprintf("%d.log", searchFiles-1), s.Found.GetStoppedAfter())
	require.True(t, s.Found.GetTruncated())
}
