package work

import (
	"testing"

	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
)

func TestEveryEventIsFolded(t *testing.T) {
	planetest.FoldsEveryEvent(t, workv1.File_quartet_work_v1_work_event_proto, NewState)
}
