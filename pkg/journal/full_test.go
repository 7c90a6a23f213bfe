package journal_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
)

// TestX16_AFullServer fills a real server over what it may store, without a warning to the partition before it is full.
// Every write is refused at once, none is in doubt, what was stored can be read, and when something was removed the
// partition is written again. No other generation of the partition begins.
func TestX16_AFullServer(t *testing.T) {
	server := must.Value(natsd.Start(natsd.Config{StoreDir: t.TempDir(), MaxStore: 8 << 20, Port: natsd.InProcess}))(t)
	t.Cleanup(server.Stop)
	nc := must.Value(server.Connect("test"))(t)
	t.Cleanup(nc.Close)
	must.Value(jetlog.Ensure(t.Context(), nc, "test", 1, 1))(t)
	js := must.Value(jetstream.New(nc))(t)
	other, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "other", Subjects: []string{"other"}})
	require.NoError(t, err)
	for range 4 {
		require.NoError(t, publish(t, js, 1<<20))
	}
	log := must.Value(jetlog.New(nc, "test", 0))(t)
	p := must.Value(journal.Open(t.Context(), journaltest.Config(log)))(t)
	value := strings.Repeat("x", 500_000)
	stored := 0
	for err == nil {
		if _, _, err = journal.Do(t.Context(), p, journaltest.Put("k", value, "")); err == nil {
			stored++
		}
		require.Less(t, stored, 20)
	}
	require.ErrorIs(t, err, fault.StorageFull)
	require.Positive(t, stored)
	for range 3 {
		began := time.Now()
		_, _, err = journal.Do(t.Context(), p, journaltest.Put("k", value, "again"))
		require.ErrorIs(t, err, fault.StorageFull)
		require.Equal(t, "none", fault.From(err).Metadata()["outcome"])
		t.Log("refused in", time.Since(began))
	}
	n, _, err := journal.View(t.Context(), p, journaltest.Count("k"))
	require.NoError(t, err)
	require.Equal(t, stored, n)
	require.NoError(t, other.Purge(t.Context()))
	require.Eventually(t, func() bool {
		_, _, err := journal.Do(t.Context(), p, journaltest.Put("k", value, "again"))
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	live, _, err := journal.View(t.Context(), p, journaltest.Snapshot)
	require.NoError(t, err)
	require.Equal(t, stored+1, live.Puts["k"])
	require.NoError(t, p.Close(t.Context()))
	opened := 0
	require.NoError(t, log.Scan(t.Context(), 1, func(_ uint64, f framelog.Frame) error {
		opened += strings.Count(string(f.Body), `"event_type":"partition_opened"`)
		return nil
	}))
	require.Equal(t, 1, opened)
	p = must.Value(journal.Open(t.Context(), journaltest.Config(log)))(t)
	again, _, err := journal.View(t.Context(), p, journaltest.Snapshot)
	require.NoError(t, err)
	require.Equal(t, live, again)
	require.NoError(t, p.Close(t.Context()))
}

func publish(t *testing.T, js jetstream.JetStream, size int) error {
	return must.Err(js.PublishMsg(t.Context(), &nats.Msg{Subject: "other", Data: make([]byte, size)}))
}
