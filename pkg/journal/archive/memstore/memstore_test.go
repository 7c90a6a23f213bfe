package memstore

import (
	"testing"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/archive/archivetest"
)

func TestStore(t *testing.T) {
	s := &Store{}
	archivetest.RunStore(t, func(*testing.T) archive.Store { return s })
}
