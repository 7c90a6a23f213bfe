package journal

import (
	"fmt"

	"quartet/pkg/journal/framelog"
)

// witnessed is what a load compares with the log: how far the log was written.
type witnessed struct {
	end framelog.End
	met bool // the log has the frame, or began a new incarnation after it
}

// witnessed returns what the partition's witness says.
func (p *Partition[S]) witnessed() (*witnessed, error) {
	w := &witnessed{met: true}
	if p.cfg.Witness == nil {
		return w, nil
	}
	var err error
	w.end, err = p.cfg.Witness.Last()
	w.met = w.end.Seq == 0
	return w, err
}

// meet compares an end that was read. It returns an error if another frame is in the place of the witnessed one.
func (w *witnessed) meet(partition string, end framelog.End) error {
	switch {
	case w.met:
	case end.Incarnation > w.end.Incarnation:
		w.met = true
	case end.Seq == w.end.Seq && end.Hash != w.end.Hash:
		return &replayError{&framelog.Broken{Partition: partition, Seq: end.Seq, Cause: fmt.Sprintf("another frame is in its place than the one that was written there (%.12s, not %.12s)", end.Hash, w.end.Hash)}}
	case end.Seq == w.end.Seq:
		w.met = true
	}
	return nil
}

// missing returns an error if the log ends before the witnessed frame, or does not have it. It is final if certain
// is set.
func (w *witnessed) missing(partition string, end framelog.End, certain bool) error {
	if w.met {
		return nil
	}
	err := &framelog.Broken{Partition: partition, After: end, Seq: w.end.Seq, First: w.end.WalSeq + 1, Cause: "it is gone"}
	if !certain {
		return err
	}
	return &replayError{err}
}
