package scheduler

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	waitTerm = time.Minute
	pollTerm = 2 * time.Millisecond
)
