package task

import (
	"context"
)

// Quiesce waits until what was asked of this plane before is on disk. A test
// knows then that the plane does nothing more by itself, unless a worker says something.
func (s *Service) Quiesce(ctx context.Context) error {
	s.lives.due.Settle()
	return s.engine.Settle(ctx)
}
