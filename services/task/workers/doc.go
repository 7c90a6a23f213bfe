// Package workers is the task plane's side of its workers: it holds their
// streams, gives them queued commands, takes their reports, keeps the leases of
// running commands, and passes orders about worktrees on to them.
//
// It imports model, rules and output, and is imported by the service. What it
// keeps in memory, the leases and who is connected, is rebuilt after a restart
// from the journal and from the workers that connect again.
//
//	queued --dispatch--> TaskStarted (durable) --committed--> lease to the worker
//	worker --report-->   output stored, or the end decided and written
//	silence for a term --> the command ends with the reason worker_lost
package workers
