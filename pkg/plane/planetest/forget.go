package planetest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
)

// Forget removes from the first partition of a plane what journal.Partition.Expire removes: the events before a time
// that state does not need, after it has applied all events to state. From then on Get returns frames without these
// events. Scan and Follow still return all of them, in the place of the snapshot from which a partition would be
// loaded. Forget returns the events that it removed.
func Forget[S interface {
	journal.State
	journal.Retaining
}](t *testing.T, j *Journals, plane string, reg *journal.Registry, state S, before time.Time) (
	removed []*journal.Event,
) {
	t.Helper()
	all := j.Events(t, plane, reg)
	for _, ev := range all {
		require.NoError(t, state.Apply(ev))
	}
	gone := map[uint64]bool{}
	for _, ev := range all {
		if ev.CreatedAt.Before(before) && !state.Needs(ev, before) {
			gone[ev.WalSeq] = true
			removed = append(removed, ev)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone == nil {
		j.gone = map[string]map[uint64]bool{}
	}
	j.gone[plane] = gone
	return removed
}

// removing is a log of which Get returns frames without the lines that Forget removed.
type removing struct {
	*journaltest.MemLog
	journals *Journals
	plane    string
}

// Get implements framelog.Log. It erases the lines that Forget removed.
func (l removing) Get(ctx context.Context, seq uint64) (framelog.Frame, error) {
	f, err := l.MemLog.Get(ctx, seq)
	if err != nil {
		return f, err
	}
	l.journals.mu.Lock()
	gone := l.journals.gone[l.plane]
	l.journals.mu.Unlock()
	f, _ = f.Erase(f.Link.First, func(line []byte) bool {
		raw, err := journal.ParseLine(line)
		return err == nil && gone[raw.WalSeq]
	})
	return f, nil
}
