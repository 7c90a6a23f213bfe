package identity

import (
	"testing"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/plane/planetest"
)

func TestEveryEventIsFolded(t *testing.T) {
	planetest.FoldsEveryEvent(t, identityv1.File_quartet_identity_v1_identity_event_proto, NewState)
}
