package waiting

import "context"

// Quiesce waits until everything that this plane was given before is durable, and what is
// due by its clock has fired. It is for tests.
func (s *Service) Quiesce(ctx context.Context) error {
	s.due.Settle()
	return s.engine.Settle(ctx)
}
