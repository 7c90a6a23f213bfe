package journal_test

import (
	"testing"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/journal/memlog"
)

func TestMemlog(t *testing.T) {
	open := func(*testing.T) framelog.Log { return memlog.New() }
	t.Run("log", func(t *testing.T) { journaltest.RunLog(t, open) })
	t.Run("partition", func(t *testing.T) { journaltest.RunPartition(t, 0, open) })
	t.Run("partition of small segments", func(t *testing.T) { journaltest.RunPartition(t, 1000, open) })
}

func TestJetlog(t *testing.T) {
	open := func(t *testing.T) framelog.Log { return jetLog(t) }
	t.Run("log", func(t *testing.T) { journaltest.RunLog(t, open) })
	t.Run("partition", func(t *testing.T) { journaltest.RunPartition(t, 0, open) })
	t.Run("partition of small segments", func(t *testing.T) { journaltest.RunPartition(t, 1000, open) })
}
