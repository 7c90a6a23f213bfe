package waiting

import "context"

// Quiesce waits until what was asked of this plane before is on disk and what is
// due by its clock has fired. A test knows then that the plane does nothing more
// by itself.
func (s *Service) Quiesce(ctx context.Context) error {
	s.due.Settle()
	return s.engine.Settle(ctx)
}
