package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// TestEventsThatAreCopiedLate: a partition whose events wait for their copy for long is named, and only that.
func TestEventsThatAreCopiedLate(t *testing.T) {
	lag := func(partition int32, behind time.Duration) *identityv1.PublisherLag {
		return &identityv1.PublisherLag{Plane: "work", Partition: partition, Frames: 7, Behind: durationpb.New(behind)}
	}
	for what, c := range map[string]struct {
		lags []*identityv1.PublisherLag
		want []Finding
	}{
		"not copied": {nil, []Finding{{Check: "events", Status: Skipped, Message: "events are not copied to EVENTS, " +
			"or the server is older than this program"}}},
		"a moment": {
			[]*identityv1.PublisherLag{lag(0, 0), lag(1, eventsNoted-time.Millisecond)},
			[]Finding{{Check: "events", Status: OK, Message: "EVENTS is 29.999s behind the journals at most"}},
		},
		"too long": {
			[]*identityv1.PublisherLag{lag(0, 0), lag(1, 90*time.Second)},
			[]Finding{{
				Check: "events", Status: Warning, Message: "EVENTS is 1m30s and 7 frames behind the journal " +
					"of work/1",
				Mend: "see the log of the process that holds the partition (`quartet status` says which) for " +
					"interruptions of the bus, and whether the store has room; nothing is lost, as the journal has all",
			}},
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := &report{}
			r.events(&identityv1.ListProcessesResponse{Publishers: c.lags})
			require.Equal(t, c.want, r.found)
		})
	}
}

// What the journals take is told, and a store that will be full in a few days is a warning.
func TestX17_WhatJournalsTake(t *testing.T) {
	r := &report{}
	r.segments(&identityv1.ListProcessesResponse{})
	require.Equal(t, Skipped, r.found[0].Status)
	r = &report{}
	r.segments(&identityv1.ListProcessesResponse{
		Journals: []*identityv1.JournalUsage{
			{Segments: 2, Bytes: 70 << 20, ArchivedSegments: 5, ArchivedBytes: 20 << 20, ArchivedFrameBytes: 300 << 20},
			{Segments: 1, Bytes: 1 << 20},
		},
	})
	require.Equal(t, []Finding{{Check: "segments", Status: OK, Message: "2 journals have 3 segments with 71.0 MiB, " +
		"and 5 archived with 20.0 MiB"}}, r.found)
	for in, want := range map[time.Duration]string{
		0: OK, storeSoon: OK, storeSoon - time.Second: Warning,
		time.Hour: Warning,
	} {
		r := &report{}
		r.store(&identityv1.ListProcessesResponse{
			StoreUsedBytes: 10 << 20, StoreLimitBytes: 100 << 20, StoreFullIn: durationpb.New(in),
		})
		require.Equal(t, want, r.found[0].Status, in)
	}
	r = &report{}
	r.store(&identityv1.ListProcessesResponse{
		StoreUsedBytes: 10 << 20, StoreLimitBytes: 100 << 20, StoreFullIn: durationpb.New(5 * time.Hour),
	})
	require.Equal(t, "the store of the journals will be full in 5 hours at the rate of the last hours: 10 of 100 MiB "+
		"are in use, 10 %", r.found[0].Message)
}

// What could not be removed is a warning with what to do, and none of the planes.
func TestWhatIsNotRemoved(t *testing.T) {
	const text = "work/0 still has old events (history-days): nobody knows what was read"
	r := &report{}
	all := &identityv1.ListProcessesResponse{
		Planes:    []*identityv1.PlaneHealth{{Name: "work", Up: true}},
		Processes: []*identityv1.Process{{RemovalFailures: []string{text}}, {}},
		Problems:  []*identityv1.InstallationProblem{{Text: text, Remedy: "see its log"}},
	}
	r.removal(all)
	r.planes(all)
	require.Equal(t, []Finding{
		{Check: "removal", Status: Warning, Message: text, Mend: "see its log"},
		{Check: "planes", Status: OK, Message: "all 1 services of the installation are served, by 2 processes"},
	}, r.found)
	r = &report{}
	r.removal(&identityv1.ListProcessesResponse{})
	require.Equal(t, OK, r.found[0].Status)
}
