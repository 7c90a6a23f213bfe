package work

import "context"

// Quiesce waits until what was asked of this plane before is on disk. A test
// knows then that the plane does nothing more by itself.
func (s *Service) Quiesce(ctx context.Context) error {
	return s.engine.Settle(ctx)
}
