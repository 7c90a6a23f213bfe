package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
)

// TestQuarantineOfEachKindOfBoard damages a record about an active board, about one that has
// ended, about one that was never seen, and about one that cannot be told.
func TestQuarantineOfEachKindOfBoard(t *testing.T) {
	k := plane.KeyOf("acme", "keeper")
	damage := func(eventType, board string) journal.Damage {
		return journal.Damage{
			WalSeq: 7,
			Line: []byte(`{"event_type":"` + eventType + `","namespace":"acme","session_id":"keeper","task_id":"` +
				board + `","payload":{`),
		}
	}
	st := NewState(time.Minute)
	for _, id := range []string{"running", "ended"} {
		require.NoError(t,
			st.Apply(&journal.Event{
				Namespace: "acme", SessionID: "keeper", TaskID: id, Type: "task_created", CreatedAt: time.Unix(0, 0),
				Payload: &boardv1.TaskCreated{WalName: id, Steps: []*boardv1.StepInput{{StepId: "a"}}},
			}))
	}
	require.NoError(t, st.Apply(&journal.Event{
		Namespace: "acme", SessionID: "keeper", TaskID: "ended", Type: "task_cancelled", CreatedAt: time.Unix(1, 0),
		Payload: &boardv1.TaskCancelled{},
	}))
	require.Nil(t, st.ActiveBoard(k, "ended"))

	require.NoError(t, st.Quarantine(damage("step_updated", "ended")))
	require.Nil(t, st.ActiveBoard(k, "ended"), "its result stays readable")
	ended, err := st.FindBoard(k, "ended", "")
	require.NoError(t, err)
	require.False(t, ended.IsDamaged())

	require.NoError(t, st.Quarantine(damage("step_updated", "running")))
	require.True(t, st.ActiveBoard(k, "running").IsDamaged())

	require.NoError(t, st.Quarantine(damage("step_updated", "unseen")))
	require.True(t, st.ActiveBoard(k, "unseen").IsDamaged())

	require.NoError(t, st.Quarantine(damage("task_created", "ended")), "the record created the id's next board")
	require.True(t, st.ActiveBoard(k, "ended").IsDamaged())

	require.ErrorIs(t, st.Quarantine(journal.Damage{Line: []byte(`{"namespace":"acme"}`)}), errUnknownBoard)
}
