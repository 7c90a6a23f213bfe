package framelog

import "fmt"

// Witness remembers outside of a log how far it was written.
type Witness interface {
	// Last returns the newest end that was recorded; the zero End if none was.
	Last() (End, error)
	// Record records an end of the log. It must be called before anybody learns what was written up to there, and does
	// not wait for a disk.
	Record(end End)
}

// Comparison compares a log that is read with what its witness says.
type Comparison struct {
	partition string
	end       End // what was witnessed
	// settled says that nothing is missing: nothing was witnessed, or the log has the witnessed frame, began a new
	// incarnation after it, or is not read at its place.
	settled bool
}

// Compare begins to compare the log of a partition with the last end that w recorded. If w is nil there is nothing to
// compare with. Its error is that of w.
func Compare(partition string, w Witness) (*Comparison, error) {
	c := &Comparison{partition: partition, settled: true}
	if w == nil {
		return c, nil
	}
	var err error
	c.end, err = w.Last()
	c.settled = c.end.Seq == 0
	return c, err
}

// Read must be called with the end behind each frame that is read, in order. It returns a *Broken if another
// frame is in the place of the witnessed one.
func (c *Comparison) Read(end End) error {
	switch {
	case c.settled:
	case end.Incarnation > c.end.Incarnation, end.Seq == c.end.Seq && end.Hash == c.end.Hash &&
		end.WalSeq == c.end.WalSeq:
		c.settled = true
	case end.Seq == c.end.Seq:
		return &Broken{Partition: c.partition, Seq: end.Seq, Cause: fmt.Sprintf("another frame is in its place than "+
			"the one that was written there (%.12s, not %.12s)", end.Hash, c.end.Hash)}
	}
	return nil
}

// ReadFrom must be called first if the log is read only from behind end on, where a snapshot ends. A witnessed frame
// before end counts as found.
func (c *Comparison) ReadFrom(end End) error {
	c.settled = c.settled || c.end.Seq < end.Seq
	return c.Read(end)
}

// Missing returns a *Broken if the log, which was read up to its end, lacks the witnessed frame. It returns nil if the
// log has it, and also if nothing was witnessed, if a newer incarnation began, or if the log was not read at its place,
// because that is before the snapshot (ReadFrom).
func (c *Comparison) Missing(end End) error {
	if c.settled {
		return nil
	}
	// With First behind the witnessed frame's last line, Error names all wal_seqs that are missing.
	return &Broken{Partition: c.partition, After: end, Seq: c.end.Seq, First: c.end.WalSeq + 1, Cause: "it is gone"}
}
