package archive_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/event"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

// countingStore counts what is read of segments.
type countingStore struct {
	archive.Store
	reads map[string]int
}

func (s countingStore) Get(ctx context.Context, name string, at uint64, bytes int64) ([]byte, error) {
	s.reads[name]++
	return s.Store.Get(ctx, name, at, bytes)
}

// eventOf returns the line of an event of an agent.
func eventOf(walSeq int, namespace, agent, text string) string {
	return fmt.Sprintf(`{"wal_seq":%d,"event_type":"said","agent_id":%q,"namespace":%q,"payload":{"text":%q}}`+"\n",
		walSeq, agent, namespace, text)
}

// erasing erases the lines of an agent.
func erasing(namespace, agent string) archive.Erasing {
	is := func(ns, id string) bool { return ns == namespace && id == agent }
	return archive.Erasing{Owner: is, Line: func(line []byte) bool { return is(event.OwnerOf(line)) }}
}

// TestCatalog_EraseReadsOnlySegmentsOfTheOwner: of a segment without lines of an agent only the index is read.
func TestCatalog_EraseReadsOnlySegmentsOfTheOwner(t *testing.T) {
	w := newWritten()
	for i, agent := range []string{"ada", "bob", "eve", "eve"} {
		if i > 0 {
			w.close(t)
		}
		w.write(t, eventOf(2*i+1, "ns", agent, "what "+agent+" said")+eventOf(2*i+2, "other", "ada", "another one"))
	}
	dir := t.TempDir()
	store := countingStore{archive.NewDirectory(dir, "test", 0), map[string]int{}}
	w.archived(t, archive.NewLog(w.live, store, partition))
	c := must.Value(archive.Read(t.Context(), store, partition))(t)
	require.Len(t, c.Segments, 3)
	x := must.Value(c.Segments[1].Index(t.Context(), store))(t)
	require.True(t, x.GetListsOwners())
	require.Len(t, x.GetOwners(), 2)
	require.Equal(t, []string{"bob"}, x.GetOwners()[0].GetAgentIds())

	clear(store.reads)
	for _, s := range c.Segments {
		var n int64
		var err error
		c, n, err = c.Erase(t.Context(), store, s.GetNumber(), erasing("ns", "ada"))
		require.NoError(t, err)
		if s.GetNumber() > 0 {
			require.Zero(t, n)
			require.Equal(t, 1, store.reads[s.GetName()], "its index")
			continue
		}
		require.EqualValues(t, 1, n)
		require.Greater(t, store.reads[s.GetName()], 1)
	}
	x = must.Value(c.Segments[0].Index(t.Context(), store))(t)
	require.Len(t, x.GetOwners(), 1, "whoever was erased is not listed")
	require.Equal(t, "other", x.GetOwners()[0].GetNamespace())
	require.NotContains(t, string(journaltest.ArchiveContent(t, dir)), "what ada said")
	require.Contains(t, string(journaltest.ArchiveContent(t, dir)), "another one")
}

// TestCatalog_EraseOfVeryManyOwners: a segment with more agents than an index lists is read.
func TestCatalog_EraseOfVeryManyOwners(t *testing.T) {
	for _, n := range []int{1 << 15, 1<<15 + 1} {
		w := newWritten()
		var body strings.Builder
		for i := range n {
			body.WriteString(eventOf(i+1, "ns", fmt.Sprint("a", i), "text"))
		}
		w.write(t, body.String())
		w.close(t)
		w.write(t, "{}\n")
		store := archive.NewDirectory(t.TempDir(), "test", 0)
		w.archived(t, archive.NewLog(w.live, store, partition))
		c := must.Value(archive.Read(t.Context(), store, partition))(t)
		require.Equal(t, n == 1<<15, must.Value(c.Segments[0].Index(t.Context(), store))(t).GetListsOwners())
		_, erased, err := c.Erase(t.Context(), store, 0, erasing("ns", fmt.Sprint("a", n-1)))
		require.NoError(t, err)
		require.EqualValues(t, 1, erased)
	}
}
