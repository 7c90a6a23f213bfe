package scheduler

// Quiesce waits until every agent that was marked before has been evaluated and every
// reminder that is due was given. A test then knows that nothing is left to decide.
func (s *Service) Quiesce() {
	s.rechecks.Settle()
	s.dirty.wait()
}
