package journaltest

import (
	"testing"

	"quartet/pkg/journal/archive"
)

func TestStore(t *testing.T) {
	s := &MemArchive{}
	RunArchiveStore(t, func(*testing.T) archive.Store { return s })
}
