package journal_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
)

// BenchmarkLoad is a restart without snapshots, in events a second: 1 000 000
// have 30 s.
func BenchmarkLoad(b *testing.B) {
	const frames, events = 1000, 100
	log := jetLog(b)
	p := must.Value(journal.Open(b.Context(), journaltest.Config(log)))(b)
	op := journaltest.Put("", "", "")
	op.Answer = nil
	op.Decide = func(*journaltest.State, journal.Env) (journal.Decision[int], error) {
		var d journal.Decision[int]
		for i := range events {
			d.Events = append(d.Events, journaltest.Event(fmt.Sprint("key-", i),
				"some text that makes the event as long as a small one is"))
		}
		return d, nil
	}
	for i := range frames {
		op.RequestID = fmt.Sprint("req-", i)
		_, _, err := journal.Do(b.Context(), p, op)
		require.NoError(b, err)
	}
	require.NoError(b, p.Close(context.Background()))
	b.ResetTimer()
	start := time.Now()
	for range b.N {
		p := must.Value(journal.Open(b.Context(), journaltest.Config(log)))(b)
		require.NoError(b, p.Close(context.Background()))
	}
	b.ReportMetric(float64(b.N*frames*events)/time.Since(start).Seconds(), "events/s")
}
