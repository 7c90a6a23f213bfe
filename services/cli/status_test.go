package cli

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

func (p *planes) ListProcesses(ctx context.Context, r *identityv1.ListProcessesRequest) (
	*identityv1.ListProcessesResponse, error,
) {
	resp := &identityv1.ListProcessesResponse{
		Processes: []*identityv1.Process{
			{
				ProcessId: "prc_1", Host: "one", Address: "one:7481", Services: []string{"agent", "work"},
				Version: "1.2.3", Answer: identityv1.ProcessAnswer_PROCESS_ANSWER_READY,
				Held: []*identityv1.HeldPartition{{Plane: "agent"}, {Plane: "work"}, {Plane: "work", Partition: 2}},
			},
			{
				ProcessId: "prc_2", Host: "two", Address: "two:7481", Services: []string{"task"}, Version: "1.2.3",
				Answer: identityv1.ProcessAnswer_PROCESS_ANSWER_NOT_READY,
			},
		},
		Streams: []*identityv1.StreamUsage{
			{Name: "EVENTS", Messages: 3, Bytes: 3 << 20, MaxBytes: 256 << 20},
			{Name: "quartet-journal-work-0-1", Messages: 7, Bytes: 1 << 19},
			{Name: "quartet-snapshot-work-0", Messages: 2, Bytes: 1 << 10},
			{Name: "quartet-output", Messages: 1, Bytes: 1 << 20},
		},
		Journals: []*identityv1.JournalUsage{{Plane: "work", Segments: 1, Bytes: 1 << 19}},
		Publishers: []*identityv1.PublisherLag{{Plane: "agent"}, {
			Plane: "work", Partition: 2, Frames: 1200, Behind: durationpb.New(41300 * time.Millisecond),
		}},
		StoreUsedBytes: 700 << 20, StoreLimitBytes: 1000 << 20,
	}
	for _, name := range []string{"agent", "work", "task"} {
		plane := &identityv1.PlaneHealth{
			Name: name, Up: !slices.Contains(p.down, name), ProcessIds: []string{"prc_1"}, Partitions: 6,
		}
		if !plane.GetUp() {
			plane.ProcessIds = nil
			resp.Problems = append(resp.Problems, &identityv1.InstallationProblem{
				Plane: name, Text: name + " is down: no process serves it", Remedy: "start one", Down: true,
			})
		}
		resp.Planes = append(resp.Planes, plane)
	}
	return resp, p.record(ctx, r)
}

// TestStatus: the tables, and the exit code and the error if something is down.
func TestStatus(t *testing.T) {
	r := newHarness(t)
	got := r.run("status")
	require.Zero(t, got.code, got.err)
	golden(t, "status", got.out)
	sent, ok := r.planes.last.(*identityv1.ListProcessesRequest)
	require.True(t, ok)
	require.True(t, sent.GetExamine())

	r.planes.down = []string{"task"}
	got = r.run("status")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.out, "task   down")
	require.Contains(t, got.err, "task is down: no process serves it\n  fix: start one")
	got = r.run("status", "-o", "json")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.out, `"problems"`)

	r.planes.fail(fault.New(codes.Unavailable, fault.NotReady, "identity is not served here"))
	got = r.run("status")
	require.NotZero(t, got.code)
	require.Contains(t, got.err, "identity is down")
	require.Contains(t, got.err, "quartet serve identity")
}
