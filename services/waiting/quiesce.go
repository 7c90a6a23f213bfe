package waiting

import "context"

// Quiesce waits until every command that the journal was given before is durable, and what is due by the
// plane's clock has fired. It does not wait for deliveries that are not in a batch yet. It is for tests.
func (s *Service) Quiesce(ctx context.Context) error {
	s.due.Settle()
	return s.engine.Settle(ctx)
}
