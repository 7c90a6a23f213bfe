package work

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// planPath returns where an item's plan lies.
func (r *rig) planPath(itemID string) string {
	return filepath.Join(r.home, "acme", "keeper", "work-items", itemID, "plan.md")
}

// writePlan is another program's edit.
func (r *rig) writePlan(itemID, text string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.planPath(itemID), []byte(text), 0o600))
}

func sha(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func TestW2_CreationMakesThePlanFile(t *testing.T) {
	r := newRig(t)
	it := r.create("ship")
	a := it.GetPlanArtifact()
	require.Equal(t, r.planPath(it.GetWorkItemId()), a.GetPath())
	require.FileExists(t, a.GetPath())
	require.Empty(t, a.GetProblem())
	require.Zero(t, a.GetBytes())
	require.Equal(t, sha(""), a.GetSha256())
	require.True(t, a.GetPreviewComplete())
	require.NotNil(t, a.GetUpdatedAt())
}

func TestW2_SeedIsWrittenOnceAndNeverOverAnEdit(t *testing.T) {
	r := newRig(t)
	req := &workv1.CreateWorkItemRequest{
		AgentId: "keeper", Objective: "ship", Plan: "# Plan\n1. build\n", RequestId: "r1",
	}
	resp := must.Value(r.client.CreateWorkItem(r.ctx, req))(t)
	it := resp.GetWorkItem()
	require.Equal(t, "# Plan\n1. build\n", it.GetPlanArtifact().GetPreview())
	require.Equal(t, sha("# Plan\n1. build\n"), it.GetPlanArtifact().GetSha256())

	r.writePlan(it.GetWorkItemId(), "edited")
	resp = must.Value(r.client.CreateWorkItem(r.ctx, req))(t)
	require.Equal(t, it.GetWorkItemId(), resp.GetWorkItem().GetWorkItemId())
	require.Equal(t, "edited", resp.GetWorkItem().GetPlanArtifact().GetPreview())

	dirs := must.Value(os.ReadDir(filepath.Join(r.home, "acme", "keeper", "work-items")))(t)
	require.Len(t, dirs, 1, "a repeated request leaves no second folder")
}

func TestW3_AnEditIsSeenOnTheNextRead(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	for _, text := range []string{"one", "two", "six", "longer than before", ""} {
		r.writePlan(itemID, text)
		a := r.get(itemID).GetPlanArtifact()
		require.Equal(t, text, a.GetPreview())
		require.Equal(t, sha(text), a.GetSha256())
		require.EqualValues(t, len(text), a.GetBytes())
	}
	require.EqualValues(t, 1, r.get(itemID).GetRevision(), "the file is outside revision and journal")
	require.Len(t, r.events(), 1)
}

// Editors write a new file and rename it over the old one; such an edit is seen
// even if it has the size and the time of what was there.
func TestW3_AReplacedFileIsSeenThoughSizeAndTimeAreTheSame(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	old := time.Now().Add(-time.Hour)
	r.writePlan(itemID, "AAAA")
	require.NoError(t, os.Chtimes(r.planPath(itemID), old, old))
	require.Equal(t, "AAAA", r.get(itemID).GetPlanArtifact().GetPreview())

	other := r.planPath(itemID) + ".edit"
	require.NoError(t, os.WriteFile(other, []byte("BBBB"), 0o600))
	require.NoError(t, os.Chtimes(other, old, old))
	require.NoError(t, os.Rename(other, r.planPath(itemID)))
	require.Equal(t, "BBBB", r.get(itemID).GetPlanArtifact().GetPreview())
}

func TestW3_PreviewIsCutAtARuneBoundary(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	for _, unit := range []string{"a", "é", "世", "🙂"} {
		for n, complete := range map[int]bool{1599: true, 1600: true, 1601: false} {
			text := strings.Repeat(unit, n)
			r.writePlan(itemID, text)
			a := r.get(itemID).GetPlanArtifact()
			require.Equal(t, complete, a.GetPreviewComplete(), "%d times %s", n, unit)
			require.Equal(t, min(n, 1600), utf8.RuneCountInString(a.GetPreview()))
			require.True(t, utf8.ValidString(a.GetPreview()))
			require.EqualValues(t, len(text), a.GetBytes())
			require.Equal(t, sha(text), a.GetSha256())
		}
	}
}

func TestW3_AMissingPlanIsMadeWhenItIsLookedAt(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	require.NoError(t, os.RemoveAll(filepath.Dir(r.planPath(itemID))))

	// A list only looks.
	l := must.Value(r.client.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper"}))(t)
	require.Equal(t, "missing", l.GetWorkItems()[0].GetPlanArtifact().GetProblem())
	require.NoFileExists(t, r.planPath(itemID))

	require.Empty(t, r.get(itemID).GetPlanArtifact().GetProblem())
	require.FileExists(t, r.planPath(itemID))

	// Of a completed item nothing is made any more.
	require.NoError(t, os.RemoveAll(filepath.Dir(r.planPath(itemID))))
	_, err := r.client.CompleteWorkItem(r.ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: itemID})
	require.NoError(t, err)
	require.Equal(t, "missing", r.get(itemID).GetPlanArtifact().GetProblem())
	require.NoFileExists(t, r.planPath(itemID))
}

// The empty plan file of an item that is completed is removed with its folder. One with content, and a folder with
// other files, stay.
func TestW2_AnEmptyPlanIsRemovedWithItsItem(t *testing.T) {
	r := newRig(t)
	complete := func(itemID string) *workv1.PlanArtifact {
		t.Helper()
		return must.Value(r.client.CompleteWorkItem(r.ctx, &workv1.CompleteWorkItemRequest{
			AgentId: "keeper", WorkItemId: itemID,
		}))(t).GetWorkItem().GetPlanArtifact()
	}
	empty, planned, other, late := r.create("a").GetWorkItemId(), r.create("b").GetWorkItemId(),
		r.create("c").GetWorkItemId(), r.create("d").GetWorkItemId()
	r.writePlan(planned, "# plan")
	note := filepath.Join(filepath.Dir(r.planPath(other)), "note.md")
	require.NoError(t, os.WriteFile(note, []byte("x"), 0o600))
	a := complete(empty)
	require.Equal(t, "missing", a.GetProblem())
	require.Zero(t, a.GetBytes())
	require.NoDirExists(t, filepath.Dir(r.planPath(empty)))

	require.Equal(t, sha("# plan"), complete(planned).GetSha256())
	require.FileExists(t, r.planPath(planned))

	complete(other)
	require.NoFileExists(t, r.planPath(other))
	require.FileExists(t, note)
	require.Equal(t, "missing", r.get(other).GetPlanArtifact().GetProblem())

	// What a crash left is removed by the repeated call, and what the agent writes later is shown.
	complete(late)
	require.NoError(t, os.MkdirAll(filepath.Dir(r.planPath(late)), 0o750))
	require.NoError(t, os.WriteFile(r.planPath(late), nil, 0o600))
	complete(late)
	require.NoDirExists(t, filepath.Dir(r.planPath(late)))
	must.Value(r.files().WriteFile(r.ctx, &workv1.WriteFileRequest{AgentId: "keeper", Path: "work-items/" + late +
		"/plan.md", Text: "after all"}))(t)
	complete(late)
	require.Equal(t, sha("after all"), r.get(late).GetPlanArtifact().GetSha256())
}

func TestW3_WhatIsNoPlanIsSaidAndNotShown(t *testing.T) {
	for name, c := range map[string]struct {
		make    func(t *testing.T, path string)
		problem string
	}{
		"binary": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, []byte{0xff, 0xfe, 0x00}, 0o600))
		}, "not_text"},
		"text with a NUL": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, []byte("a\x00b"), 0o600))
		}, "not_text"},
		"a character cut off at the end": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, []byte("caf\xc3"), 0o600))
		}, "not_text"},
		"a named pipe": {func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, syscall.Mkfifo(path, 0o600))
		}, "not_a_regular_file"},
		"a file where its folder should be": {func(t *testing.T, path string) {
			require.NoError(t, os.RemoveAll(filepath.Dir(path)))
			require.NoError(t, os.WriteFile(filepath.Dir(path), []byte("hunter2"), 0o600))
		}, "unreadable"},
		"a directory": {func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o700))
		}, "not_a_regular_file"},
		"a symlink to a secret": {func(t *testing.T, path string) {
			secret := filepath.Join(t.TempDir(), "secret")
			require.NoError(t, os.WriteFile(secret, []byte("hunter2"), 0o600))
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink(secret, path))
		}, "not_a_regular_file"},
		"a symlink within the home": {func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.WriteFile(path+".other", []byte("hunter2"), 0o600))
			require.NoError(t, os.Symlink("plan.md.other", path))
		}, "not_a_regular_file"},
		"a folder that leads out of the home": {func(t *testing.T, path string) {
			out := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(out, "plan.md"), []byte("hunter2"), 0o600))
			require.NoError(t, os.RemoveAll(filepath.Dir(path)))
			require.NoError(t, os.Symlink(out, filepath.Dir(path)))
		}, "unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			itemID := r.create("ship").GetWorkItemId()
			c.make(t, r.planPath(itemID))
			a := r.get(itemID).GetPlanArtifact()
			require.Equal(t, c.problem, a.GetProblem())
			require.Empty(t, a.GetPreview())
			require.False(t, a.GetPreviewComplete())
			// The item itself is as usable as ever.
			r.pick(itemID)
		})
	}
}

// Whoever links his folder into another agent's home sees nothing of it.
func TestA11_AFolderThatLeadsIntoAnotherHomeIsNotFollowed(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	theirs := filepath.Join(r.home, "umbrella", "victim", "work-items", "x")
	require.NoError(t, os.MkdirAll(theirs, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(theirs, "plan.md"), []byte("hunter2"), 0o600))
	require.NoError(t, os.RemoveAll(filepath.Dir(r.planPath(itemID))))
	require.NoError(t, os.Symlink("../../../umbrella/victim/work-items/x", filepath.Dir(r.planPath(itemID))))
	a := r.get(itemID).GetPlanArtifact()
	require.Empty(t, a.GetPreview())
	require.NotEmpty(t, a.GetProblem())
	require.Zero(t, a.GetBytes())
}

func TestX1_AnUnwritablePlanCreatesNothing(t *testing.T) {
	r := newRig(t)
	// A file stands where the agent's folder would be.
	require.NoError(t, os.MkdirAll(filepath.Join(r.home, "acme"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(r.home, "acme", "keeper"), nil, 0o600))
	_, err := r.client.CreateWorkItem(r.ctx, &workv1.CreateWorkItemRequest{
		AgentId: "keeper", Objective: "ship", Plan: "seed",
	})
	require.ErrorIs(t, err, fault.Storage)
	require.NotContains(t, err.Error(), r.home, "internal text does not cross")
	require.Empty(t, r.events())

	// Without a seed the item stands; its plan says what is wrong.
	it := r.create("ship")
	require.NotEmpty(t, it.GetPlanArtifact().GetProblem())
}

// planFolders returns the folders of plans of keeper, none if it has no home.
func (r *rig) planFolders() (names []string) {
	dirs, err := os.ReadDir(filepath.Join(r.home, "acme", "keeper", "work-items"))
	if err != nil {
		require.ErrorIs(r.t, err, fs.ErrNotExist)
	}
	for _, d := range dirs {
		names = append(names, d.Name())
	}
	return names
}

// A creation that is refused leaves no plan file, whatever refuses it, and none of the home of an agent that is gone
// (SPEC X5.2, A8.5). The file of a creation that may have happened stays.
func TestX5_ARefusedCreationLeavesNoPlan(t *testing.T) {
	r := newRig(t)
	req := func(requestID string) *workv1.CreateWorkItemRequest {
		return &workv1.CreateWorkItemRequest{
			AgentId: "keeper", Objective: "ship", Plan: "seed " + requestID, RequestId: requestID,
		}
	}
	full := func(used int64) {
		require.NoError(t, r.room.Measure(func() (framelog.RoomState, error) {
			return framelog.RoomState{Used: used, Limit: 1 << 30},
				nil
		}))
	}
	full(1 << 30)
	for _, id := range []string{"", "", "r1"} {
		_, err := r.client.CreateWorkItem(r.ctx, req(id))
		require.ErrorIs(t, fault.From(err), fault.StorageFull)
		require.Empty(t, r.planFolders())
	}
	full(0)
	made := must.Value(r.client.CreateWorkItem(r.ctx, req("r1")))(t)
	require.Equal(t, "seed r1", made.GetWorkItem().GetPlanArtifact().GetPreview())
	other := req("r1")
	other.Plan = "another"
	_, err := r.client.CreateWorkItem(r.ctx, other)
	require.ErrorIs(t, fault.From(err), fault.RequestIDReused)
	require.Equal(t, "seed r1", r.get(made.GetWorkItem().GetWorkItemId()).GetPlanArtifact().GetPreview())

	deleting := &journal.Event{Namespace: "acme", AgentID: "keeper", Payload: &agentv1.AgentDeleting{
		Agent: &agentv1.Agent{AgentId: "keeper"},
	}}
	r.hear(deleting)
	_, err = r.client.CreateWorkItem(r.ctx, req("")) // by the rule, since the agent plane does not say so yet
	require.ErrorIs(t, fault.From(err), fault.AgentDeleted)
	require.Equal(t, []string{made.GetWorkItem().GetWorkItemId()}, r.planFolders())
	r.agents["keeper"] = false
	require.NoError(t, os.RemoveAll(filepath.Join(r.home, "acme", "keeper")))
	r.restart() // the descriptor of what was removed is cached
	for range 2 {
		_, err = r.client.CreateWorkItem(r.ctx, req(""))
		require.ErrorIs(t, fault.From(err), fault.AgentDeleted)
		require.NoDirExists(t, filepath.Join(r.home, "acme", "keeper"))
	}
}

// heldLog closes waits at the append of an item's creation, which waits until goes is closed.
type heldLog struct {
	framelog.Log
	waits, goes chan struct{}
}

func (l *heldLog) Append(ctx context.Context, expect uint64, f framelog.Frame) (uint64, error) {
	if strings.Contains(string(f.Body), "work_item_created") {
		close(l.waits)
		<-l.goes
	}
	return l.Log.Append(ctx, expect, f)
}

// Who goes away while its item is on its way does not take the plan along (SPEC X1).
func TestX1_ACreationCutShortKeepsItsPlan(t *testing.T) {
	r := openRig(t)
	r.down()
	held := &heldLog{waits: make(chan struct{}), goes: make(chan struct{})}
	r.journals.Wrap = func(plane string, log framelog.Log) framelog.Log {
		if plane != Plane {
			return log
		}
		held.Log = log
		return held
	}
	r.up()
	t.Cleanup(func() { r.down() })
	ctx, cancel := context.WithCancel(r.ctx)
	go func() {
		<-held.waits
		cancel()
	}()
	_, err := r.service.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
		AgentId: "keeper", Objective: "ship", Plan: "seed",
	})
	require.Equal(t, "unknown", fault.From(err).Metadata()["outcome"])
	close(held.goes)
	eventually(t, func() bool { return len(r.events()) == 1 })
	require.Equal(t, "seed", r.get(r.events()[0].WorkItemID).GetPlanArtifact().GetPreview())
}

// SPEC C5.3: a list without previews keeps the rest of the descriptors, and takes nothing from
// what other reads show.
func TestC5_AListWithoutPlanPreviews(t *testing.T) {
	r := newRig(t)
	itemID := r.create("ship").GetWorkItemId()
	r.writePlan(itemID, "1. build\n2. ship\n")
	list := func(omit bool) *workv1.PlanArtifact {
		l, err := r.client.ListWorkItems(r.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", OmitPlanPreviews: omit})
		require.NoError(t, err)
		return l.GetWorkItems()[0].GetPlanArtifact()
	}
	whole := list(false)
	require.Equal(t, "1. build\n2. ship\n", whole.GetPreview(), "the default of the API stays")
	for range 2 { // the second time from the cache
		short := list(true)
		require.Empty(t, short.GetPreview())
		require.False(t, short.GetPreviewComplete())
		require.Equal(t, whole.GetPath(), short.GetPath())
		require.Equal(t, whole.GetBytes(), short.GetBytes())
		require.Equal(t, whole.GetSha256(), short.GetSha256())
		require.Equal(t, "1. build\n2. ship\n", r.get(itemID).GetPlanArtifact().GetPreview())
	}
	require.NoError(t, os.Remove(r.planPath(itemID)))
	require.Equal(t, "missing", list(true).GetProblem())
}
