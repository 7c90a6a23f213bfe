package installation

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// TestX17_EveryServiceIsLookedAt: what no process serves, and what is served by processes that do not answer or are not
// ready, is named with what to do.
func TestX17_EveryServiceIsLookedAt(t *testing.T) {
	process := func(id string, services ...string) *identityv1.Process {
		return &identityv1.Process{ProcessId: id, Host: "h", Address: id + ":1", Services: services}
	}
	waits := process("waits", "work")
	waits.NotReady = []string{"nobody has partition 3 of work yet"}
	damaged := process("damaged", "agent", "work")
	damaged.Damage = []string{"the journal of work/2 is damaged"}
	damaged.Warning = "the store of the journals is 90 % full (9 of 10 MiB). Buy a disk"
	for name, c := range map[string]struct {
		processes []*identityv1.Process
		down      []string
		notes     []string
	}{
		"all is well": {[]*identityv1.Process{process("all", "agent", "work")}, nil, nil},
		"no process serves it": {
			[]*identityv1.Process{process("a", "agent")},
			[]string{
				"work is down: no process serves it; start one: `quartet serve work …` with the nats-url of the others",
			},
			nil,
		},
		"the only one does not answer": {
			[]*identityv1.Process{process("a", "agent"), process("dead", "work")},
			[]string{"work is down: no process that serves it answers (dead on h at dead:1); start it again or " +
				"resume it, or start one: `quartet serve work …` with the nats-url of the others"},
			[]string{"the process dead on h at dead:1 does not answer"},
		},
		"another one serves it": {
			[]*identityv1.Process{process("a", "agent", "work"), process("dead", "work")},
			nil,
			[]string{"the process dead on h at dead:1 does not answer"},
		},
		"it is not ready": {
			[]*identityv1.Process{process("a", "agent"), waits},
			[]string{"work is not ready: waits on h at waits:1: nobody has partition 3 of work yet; wait until the " +
				"process has loaded its journals and NATS answers; if it does not become ready, see its log"},
			nil,
		},
		"processes know of what is wrong": {
			[]*identityv1.Process{damaged, process("b", "agent", "work")},
			nil,
			[]string{"the journal of work/2 is damaged", "the store of the journals is 90 % full (9 of 10 MiB)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := Config{
				Services: []string{"agent", "work"}, Partitions: func(string) int { return 6 },
				List: func(context.Context) ([]*identityv1.Process, error) { return c.processes, nil },
				Ask: func(_ context.Context, p *identityv1.Process) (bool, error) {
					if p.GetProcessId() == "dead" {
						return false, errors.New("refused")
					}
					return p.GetProcessId() != "waits", nil
				},
				Stored: func(context.Context) ([]*identityv1.StreamUsage, []*identityv1.JournalUsage, error) {
					return nil, []*identityv1.JournalUsage{{Plane: "work", Segments: 8}}, nil
				},
				ManySegments: 8,
				Store:        func() (int64, int64) { return 1, 2 }, FullIn: func() time.Duration { return time.Hour },
			}.Examine(t.Context())
			require.NoError(t, err)
			var down []string
			for _, p := range resp.GetProblems() {
				if p.GetDown() {
					down = append(down, p.GetText()+"; "+p.GetRemedy())
				}
			}
			require.Equal(t, c.down, down)
			require.Len(t, Down(resp), len(c.down))
			for _, text := range Down(resp) {
				require.NotContains(t, text, " on h at ", "everybody may read it")
				require.Contains(t, text, "work is ")
			}
			var notes []string
			for _, p := range resp.GetProblems() {
				require.NotEmpty(t, p.GetRemedy(), p)
				if !p.GetDown() {
					notes = append(notes, p.GetText())
				}
			}
			require.Equal(t, c.notes, notes)
			require.Len(t, resp.GetPlanes(), 2)
			require.Equal(t, int32(6), resp.GetPlanes()[1].GetPartitions())
			require.Equal(t, len(c.down) == 0, resp.GetPlanes()[1].GetUp())
		})
	}
}

// TestX17_JournalsThatAreNotArchived: an archive that cannot be read, and one that is behind, are named with what to
// do.
func TestX17_JournalsThatAreNotArchived(t *testing.T) {
	many := ManySegments(64, 16)
	require.Equal(t, 9, many)
	require.Equal(t, 72, ManySegments(1, 16), "three snapshots need 48 small segments")
	require.Empty(t, Config{ManySegments: many}.notArchived([]*identityv1.JournalUsage{
		{Plane: "work", Segments: 1},
		{Plane: "work", Partition: 1, Segments: int32(many)},
	}))
	all := []*identityv1.JournalUsage{
		{Plane: "work", Partition: 3, Segments: int32(many) + 1, Bytes: 500 << 20},
		{Plane: "task", ArchiveProblem: "archive: damaged"},
	}
	unusable := func() error { return errors.New("bucket s3://b: list: refused; let it") }
	refused := []*identityv1.JournalUsage{
		all[0],
		{Plane: "task", ArchiveProblem: "bucket s3://b: read: refused; let it"},
		{Plane: "board", ArchiveProblem: "bucket s3://b: read: refused; let it"},
	}
	problems := Config{ManySegments: many, Archive: unusable}.notArchived(refused)
	require.Len(t, problems, 2, "the bucket once, not for each partition")
	require.Equal(t, "the bucket of the archive cannot be used: bucket s3://b: list: refused", problems[0].GetText())
	require.Equal(t, "let it", problems[0].GetRemedy())
	require.Len(t, Config{ManySegments: many, Archive: func() error { return nil }}.notArchived(refused), 2)
	problems = Config{ManySegments: many}.notArchived(all)
	require.Len(t, problems, 2)
	require.Equal(t, "9 segments of work/3 wait to be archived (500 MiB)", problems[0].GetText())
	require.Equal(t, "the archive of task/0 cannot be read: archive: damaged", problems[1].GetText())
	for _, p := range problems {
		require.NotEmpty(t, p.GetRemedy())
		require.False(t, p.GetDown(), "everything is served")
	}
}

// TestWhatIsNotRemovedIsAProblem: each text once, with what to do; everything is served.
func TestWhatIsNotRemovedIsAProblem(t *testing.T) {
	problems := reported([]*identityv1.Process{
		{RemovalFailures: []string{"work/0 still has old events"}},
		{RemovalFailures: []string{"work/0 still has old events", "work/1 still has old events"}},
	})
	require.Len(t, problems, 2)
	require.Equal(t, "work/0 still has old events", problems[0].GetText())
	for _, p := range problems {
		require.NotEmpty(t, p.GetRemedy())
		require.False(t, p.GetDown())
	}
}
