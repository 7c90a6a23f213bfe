package engine

import "context"

// Store passes the calls of one process to a store as crossings, for tests with their own implementation of the
// store's interface.
type Store struct {
	Queue *Queue
	Of    *Process
	Name  string
	Disk  *Disk // nil: what is stored needs no room
}

// Change makes a call that stores or removes something; what names it. It is a crossing: the call, or only its
// answer, may be lost.
func (s Store) Change(ctx context.Context, what string, call func() error) error {
	return change(ctx, s.Queue, s.Of, s.Disk, s.Name+" "+what, call)
}

// Look must be called before a call that reads something; what names it. If it returns an error, the caller must not
// make the call.
func (s Store) Look(ctx context.Context, what string) error {
	return look(ctx, s.Queue, s.Of, s.Name+" "+what)
}

// writeFaults are those of a call that stores or removes something: it is lost, or its answer is.
var writeFaults = []Outcome{Lost, Unanswered}

// change parks a call that changes something, and makes it unless it is lost. If disk is not nil and full, the call
// is lost.
func change(ctx context.Context, q *Queue, of *Process, disk *Disk, edge string, call func() error) error {
	o, err := q.Park(ctx, Crossing{Edge: edge, Of: of, Faults: writeFaults})
	if err != nil {
		return err
	}
	if disk != nil && disk.Full() && o != Died {
		o = Lost
	}
	switch o {
	case Died:
		return ErrDead
	case Kept:
		_ = call()
		return ErrDead
	case Lost:
		return ErrNoAnswer
	case Unanswered:
		_ = call()
		return ErrNoAnswer
	default:
		return call()
	}
}

// look parks a call that changes nothing. If it returns an error, the caller must not make the call.
func look(ctx context.Context, q *Queue, of *Process, edge string) error {
	o, err := q.Park(ctx, Crossing{Edge: edge, Of: of, Faults: readFaults})
	switch {
	case err != nil:
		return err
	case o == Died || o == Kept:
		return ErrDead
	case o == Lost:
		return ErrNoAnswer
	}
	return nil
}
