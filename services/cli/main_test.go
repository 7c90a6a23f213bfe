package cli

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	time.Local = time.UTC // tables show local times
	goleak.VerifyTestMain(m)
}
