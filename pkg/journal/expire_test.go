package journal_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/tests/proc"
)

// allOld says that everything is older than history is kept.
func allOld(string) time.Time { return time.Now().Add(time.Hour) }

// expire removes everything that is archived and not needed.
func expire(ctx context.Context, p *journal.Partition[*people]) (int64, error) {
	return p.Expire(ctx, allOld, time.Now().Add(time.Hour), time.Now().Add(time.Hour), math.MaxUint64)
}

// remember lets people talk until the archive has several segments, of which one has a farewell, and returns what ada
// and bob said.
func (v *village) remember(t *testing.T, p *journal.Partition[*people]) (ada, bob []string) {
	t.Helper()
	v.talk(t, p)
	archived := func() bool { return strings.Contains(string(journaltest.ArchiveContent(t, v.dir)), "farewell") }
	for i := 0; i < 20 || !archived(); i++ {
		require.Less(t, i, 1000)
		require.NoError(t, say(t, p, "bob", fmt.Sprintf("what bob said then %d %s", i, strings.Repeat("c", 300)), ""))
		require.NoError(t, p.SettleSnapshot(t.Context()))
		if i%20 == 19 {
			require.NoError(t, p.SettleArchive(t.Context()))
		}
	}
	require.NoError(t, p.SettleArchive(t.Context()))
	return saidOf(t, p, "ada"), saidOf(t, p, "bob")
}

// expired requires that what was removed is missed by nobody but those who ask for it.
func (v *village) expired(t *testing.T, p *journal.Partition[*people], ada, bob []string) {
	t.Helper()
	require.Equal(t, ada, saidOf(t, p, "ada"))
	require.Equal(t, bob, saidOf(t, p, "bob"))
	content := string(journaltest.ArchiveContent(t, v.dir))
	require.NotContains(t, content, "what bob said 0")
	require.NotContains(t, content, "what ada said 0")
	require.Contains(t, content, "farewell ada's friend")

	events := must.Value(journal.ReadBack(t.Context(), p, []uint64{1, 2, 3}))(t)
	for i, ev := range events {
		require.True(t, ev.Removed())
		require.EqualValues(t, i+1, ev.WalSeq)
	}
	// The frames continue each other, and what was removed is passed over.
	frames := journaltest.ArchiveFrames(t, v.log(), "test/0")
	removed, kept := 0, 0
	for _, f := range frames {
		if f.Removed.Seq > 0 {
			removed++
			must.Refuse(framelog.Read(t.Context(), v.log(), "test/0", f.Seq))(t, framelog.ErrRemoved)
		}
		kept += strings.Count(string(f.Body), "farewell")
	}
	require.Positive(t, removed)
	require.Equal(t, 1, kept)

	c := must.Value(archive.Read(t.Context(), archive.NewDirectory(v.dir, "test", 0), "test/0"))(t)
	require.NotZero(t, c.Segments[0].GetRemovedLines())
	// Somebody who has read up to a frame that was removed goes on behind it.
	last := must.Value(p.Source().End(t.Context()))(t)
	after := framelog.End{Seq: c.Segments[0].Before.Seq + 2, WalSeq: 2, Hash: framelog.Hash{1}, Incarnation: 1}
	require.ErrorIs(t, p.Source().Follow(t.Context(), after, func(at framelog.End, _ []journal.Line) error {
		if at.Seq == last.Seq {
			return errLast
		}
		return nil
	}), errLast)
}

var errLast = errors.New("the last frame")

func TestExpire(t *testing.T) {
	v := newVillage(t)
	p := v.open(t)
	ada, bob := v.remember(t, p)
	all := string(journaltest.ArchiveContent(t, v.dir))
	require.Contains(t, all, "farewell", "it is in the archive")

	n, err := p.Expire(t.Context(), allOld, time.Now().Add(-time.Hour), time.Now().Add(-time.Hour), math.MaxUint64)
	require.NoError(t, err)
	require.Zero(t, n, "what was archived is not old enough")
	n = must.Value(p.Expire(t.Context(), allOld, time.Now().Add(time.Hour), time.Now().Add(-time.Hour), 1))(t)
	require.Zero(t, n, "nobody has read it")
	n = must.Value(p.Expire(t.Context(), func(string) time.Time { return time.Time{} }, time.Now().Add(time.Hour),
		time.Now().Add(-time.Hour), math.MaxUint64))(t)
	require.Zero(t, n, "everything is kept")
	require.Equal(t, all, string(journaltest.ArchiveContent(t, v.dir)))

	n = must.Value(expire(t.Context(), p))(t)
	require.Positive(t, n)
	require.Less(t, len(journaltest.ArchiveContent(t, v.dir)), len(all)/2)
	v.expired(t, p, ada, bob)
	n = must.Value(expire(t.Context(), p))(t)
	require.Zero(t, n)
	require.NoError(t, os.Rename(v.dir, v.dir+"-away"))
	n = must.Value(expire(t.Context(), p))(t, "nothing is read while the state is the same")
	require.Zero(t, n)
	require.NoError(t, os.Rename(v.dir+"-away", v.dir))
	require.NoError(t, p.Close(t.Context()))

	p = v.open(t)
	v.expired(t, p, ada, bob)
	must.Value(p.Erase(t.Context(), time.Now().Add(time.Hour), nil))(t)
	require.Nil(t, saidOf(t, p, "ada"))
	require.Equal(t, bob, saidOf(t, p, "bob"))
	require.False(t, v.found(t, "what ada said"))
	journaltest.ArchiveFrames(t, v.log(), "test/0")
	require.NoError(t, p.Close(t.Context()))
}

// TestExpireByNamespace: what one namespace keeps is kept, and the journal's own events with it.
func TestExpireByNamespace(t *testing.T) {
	v := newVillage(t)
	p := v.open(t)
	v.remember(t, p)
	n := must.Value(p.Expire(t.Context(), func(namespace string) time.Time {
		if namespace == "default" {
			return time.Time{}
		}
		return time.Now().Add(time.Hour)
	}, time.Now().Add(time.Hour), time.Now().Add(time.Hour), math.MaxUint64))(t)
	require.Positive(t, n, "events of the journal itself")
	content := string(journaltest.ArchiveContent(t, v.dir))
	require.Contains(t, content, "what ada said 0")
	require.NotContains(t, content, "partition_opened")
	require.NoError(t, p.Close(t.Context()))
}

// TestExpireNeedsASnapshot: without a snapshot that can be read nothing is removed, and what was removed is missed by a
// start without one, which says so.
func TestExpireNeedsASnapshot(t *testing.T) {
	v := newVillage(t)
	p := v.open(t)
	v.remember(t, p)
	numbers := must.Value(v.store.Numbers(t.Context()))(t)
	before := journaltest.ArchiveContent(t, v.dir)
	require.NoError(t, v.store.Remove(t.Context(), numbers[:len(numbers)-1])) // pages that the newest one needs
	must.Fail(expire(t.Context(), p))(t, "the newest snapshot of test/0 cannot be read")
	require.Equal(t, before, journaltest.ArchiveContent(t, v.dir))
	require.NoError(t, p.Close(t.Context()))

	v = newVillage(t)
	p = v.open(t)
	v.remember(t, p)
	must.Value(expire(t.Context(), p))(t)
	require.NoError(t, p.Close(t.Context()))
	v.store = journaltest.NewMemSnapshots()
	_, err := v.tryOpen(t)
	require.True(t, journal.IsDamage(err))
	require.ErrorContains(t, err, "old events were removed there (history-days)")
}

// TestExpireEndsAnywhere ends the process at each call of the log, of the snapshots and of the archive, every second
// time with the effect of that call. Whoever opens the partition then has all, and can remove what is left.
func TestExpireEndsAnywhere(t *testing.T) {
	stride := proc.Scale(8, 2) // with 2 each call once: every second one with the effect
	if testing.Short() {
		stride = 24
	}
	for first, effect := range []bool{false, true} {
		calls := first
		for reached := true; reached; calls += stride {
			v := newVillage(t)
			p := v.open(t)
			ada, bob := v.remember(t, p)
			v.mu.Lock()
			v.calls, v.effect = calls, effect
			v.mu.Unlock()
			_, err := expire(t.Context(), p)
			select {
			case <-v.failed:
				require.ErrorIs(t, err, errDead)
			default:
				require.NoError(t, err)
				reached = false
			}
			closing, end := context.WithCancel(t.Context())
			end()
			_ = p.Close(closing) // as a process that is killed
			v.mu.Lock()
			v.calls = -1
			v.mu.Unlock()
			p = v.open(t)
			must.Value(expire(t.Context(), p))(t, "after %d calls", calls)
			v.expired(t, p, ada, bob)
			require.NoError(t, p.Close(t.Context()))
		}
		require.Greater(t, calls, 5)
	}
}
