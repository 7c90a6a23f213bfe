package board

import (
	"quartet/pkg/journal"
	"quartet/services/board/model"
)

func answerWritten(events []*journal.Event) (written, error) {
	ids, n := walEvents(events)
	return written{ids, n, events}, nil
}

// maxEventIDs bounds the event ids of an answer.
const maxEventIDs = 100

// walEvents are the ids of WAL events, the first of them, and their number.
func walEvents(events []*journal.Event) (ids []string, n int32) {
	for _, ev := range events {
		if !model.InWAL(ev) {
			continue
		}
		n++
		if len(ids) < maxEventIDs {
			ids = append(ids, ev.ID)
		}
	}
	return ids, n
}
