package sim

import "context"

// Store is the way of one process to a store, for tests that have an implementation of a store's interface of their own.
type Store struct {
	Queue *Queue
	Of    *Process
	Name  string
	Disk  *Disk // nil: what is stored needs no room
}

// Change makes a call that stores or removes something, which what names: the call is a crossing, and so is its answer.
func (s Store) Change(ctx context.Context, what string, call func() error) error {
	return change(ctx, s.Queue, s.Of, s.Disk, s.Name+" "+what, call)
}

// Look is called before a call that reads. An error means that the call is not to be made.
func (s Store) Look(ctx context.Context, what string) error {
	return look(ctx, s.Queue, s.Of, s.Name+" "+what)
}

// writeFaults are those of a call that stores or removes something: it is lost, or its answer is.
var writeFaults = []Outcome{Lost, Unanswered}

// change parks a call that changes something, and calls it unless it is lost. A call that needs room is lost if disk is full; nil: it needs none.
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

// look parks a call that changes nothing. An error means that it is not made.
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
