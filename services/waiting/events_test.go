package waiting

import (
	"testing"

	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	"quartet/pkg/plane/planetest"
)

func TestEveryEventIsFolded(t *testing.T) {
	planetest.FoldsEveryEvent(t, waitingv1.File_quartet_waiting_v1_waiting_event_proto, NewState)
}
