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
		"not copied": {nil, []Finding{{Check: "events", Status: Skipped, Message: "events are not copied to EVENTS, or the server is older than this program"}}},
		"a moment":   {[]*identityv1.PublisherLag{lag(0, 0), lag(1, eventsNoted-time.Millisecond)}, []Finding{{Check: "events", Status: OK, Message: "EVENTS is 29.999s behind the journals at most"}}},
		"too long": {[]*identityv1.PublisherLag{lag(0, 0), lag(1, 90*time.Second)}, []Finding{{Check: "events", Status: Warning, Message: "EVENTS is 1m30s and 7 frames behind the journal of work/1",
			Mend: "see the log of the process that holds the partition (`quartet status` says which) for interruptions of the bus, and whether the store has room; nothing is lost, as the journal has all"}}},
	} {
		t.Run(what, func(t *testing.T) {
			r := &report{}
			r.events(&identityv1.ListProcessesResponse{Publishers: c.lags})
			require.Equal(t, c.want, r.found)
		})
	}
}
