package model

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/pkg/plane/planetest"
)

// strict is a State with a board. Apply returns an error for an event that is not known, which damages the board and is
// no error of the fold.
type strict struct{ *State }

func (s strict) Apply(ev *journal.Event) error {
	if err := s.State.Apply(ev); err != nil {
		return err
	}
	if d := s.Sessions[plane.KeyOf("acme", "keeper")].WAL("one").Damaged; d != nil &&
		strings.Contains(d.Error(), "unknown event") {
		return journal.UnknownEvent(ev)
	}
	return nil
}

func TestEveryEventIsFolded(t *testing.T) {
	planetest.FoldsEveryEvent(t, boardv1.File_quartet_board_v1_board_event_proto, func() strict {
		s := strict{NewState(time.Minute)}
		require.NoError(t, s.Apply(&journal.Event{
			Namespace: "acme", SessionID: "keeper", TaskID: "one", CreatedAt: time.Unix(0, 0),
			Payload: &boardv1.TaskCreated{WalName: "one", Steps: []*boardv1.StepInput{{StepId: "a"}}},
		}))
		return s
	})
}
