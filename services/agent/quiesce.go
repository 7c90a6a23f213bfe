package agent

import "context"

// Quiesce waits until what was asked of this plane before is on disk and what is
// due by its clock has happened: the terms of turns, and agents that were passed
// over. A test knows then that the plane does nothing more by itself.
func (s *Service) Quiesce(ctx context.Context) error {
	s.leases.due.Settle()
	s.leases.ending.Wait()
	s.ailing.due.Settle()
	s.supervision.settle()
	return s.engine.Settle(ctx)
}
