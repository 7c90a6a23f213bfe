package work

import "context"

// Quiesce waits until everything that this plane was given before is durable. It is for
// tests.
func (s *Service) Quiesce(ctx context.Context) error {
	return s.engine.Settle(ctx)
}
