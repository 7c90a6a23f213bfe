package planes

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/pkg/journal"
	"quartet/pkg/journal/journaltest"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	agentstate "quartet/services/agent/state"
)

// betweenPages is how many events are between two checks of all pages.
const betweenPages = 50

// CheckPages folds what the journals hold into states whose pages are checked, and returns what is wrong with them.
func (w *World) CheckPages() error {
	return checkPages(w, "agent", agentv1.File_quartet_agent_v1_agent_event_proto, agentstate.NewState)
}

func checkPages[S journal.Paged](w *World, plane string, file protoreflect.FileDescriptor, fresh func() S) error {
	events, err := w.Journals.Read(plane, journal.NewRegistry(file))
	if err != nil {
		return err
	}
	checked := journaltest.Checked(fresh, 0, nil)
	for i, ev := range events {
		if err := checked.Apply(ev); err != nil {
			return err
		}
		if i%betweenPages != 0 && i < len(events)-1 {
			continue
		}
		if err := checked.Check(); err != nil {
			return fmt.Errorf("pages of the %s plane, after %s, wal_seq %d: %w", plane, ev.Type, ev.WalSeq, err)
		}
	}
	return nil
}
