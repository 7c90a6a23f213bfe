package agent

import "context"

// Quiesce waits until every earlier request to this plane is on disk and everything
// that is due by its clock has happened: expired leases, ended pauses, supervision. A
// test then knows that the plane does nothing more on its own. ctx ends only the wait for the disk.
func (s *Service) Quiesce(ctx context.Context) error {
	s.leases.Wait()
	s.backoff.Wait()
	s.supervisor.Wait()
	return s.engine.Settle(ctx)
}
