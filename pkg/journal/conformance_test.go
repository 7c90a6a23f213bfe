package journal_test

import (
	"testing"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
)

func TestMemlog(t *testing.T) {
	open := func(*testing.T) framelog.Log { return journaltest.NewMemLog() }
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

// TestArchived runs a log with an archive.
func TestArchived(t *testing.T) {
	open := func(t *testing.T) framelog.Log {
		return archive.NewLog(journaltest.NewMemLog(), archive.NewDirectory(t.TempDir(), "test", 0), "test/0")
	}
	t.Run("log", func(t *testing.T) { journaltest.RunLog(t, open) })
	t.Run("partition of small segments", func(t *testing.T) { journaltest.RunPartition(t, 1000, open) })
}
