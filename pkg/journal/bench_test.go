package journal_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
)

// jetLog returns a log over an embedded broker that fsyncs every write.
func jetLog(tb testing.TB) framelog.Log {
	tb.Helper()
	nc := natsdtest.Connect(tb)
	must.Value(jetlog.Ensure(context.Background(), nc, "test", 1, 1))(tb)
	return must.Value(jetlog.New(nc, "test", 0))(tb)
}

// BenchmarkAppend is the loop alone, without gRPC, every answer fsynced.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			p := must.Value(journal.Open(b.Context(), journaltest.Config(jetLog(b))))(b)
			b.ReportAllocs()
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			start := time.Now()
			var wg sync.WaitGroup
			for c := range callers {
				wg.Go(func() {
					op := journaltest.Put(fmt.Sprintf("key-%d", c), "some text that makes the event as long as a "+
						"small one is", "")
					for left.Add(-1) >= 0 {
						if _, _, err := journal.Do(b.Context(), p, op); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "ops/s")
			b.StopTimer()
			require.NoError(b, p.Close(context.Background()))
		})
	}
}
