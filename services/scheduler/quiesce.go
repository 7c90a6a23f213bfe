package scheduler

// Quiesce waits until every agent that was marked before has been looked at and
// every reminder that is due was given. A test knows then that nothing is left to
// decide.
func (s *Service) Quiesce() {
	s.rechecks.Settle()
	s.dirty.settle()
}
