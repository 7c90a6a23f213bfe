package repair

import (
	"os"
	"path/filepath"
	"slices"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
	"quartet/services/storage/derived"
)

// examineDerived returns the streams that are damaged and not journals. Again is false for snapshots that shortened
// reports.
func (r *run) examineDerived() (damaged []derived.Report, err error) {
	streams, err := derived.Stored(r.store, r.Account)
	if err != nil {
		return nil, err
	}
	for _, s := range streams {
		found, err := s.Read(r.store, r.Account)
		if err != nil {
			return nil, err
		}
		if len(found.Damage) > 0 {
			found.Again = found.Again && !r.shortened(s.Name)
			damaged = append(damaged, found)
		}
	}
	return damaged, nil
}

// shortened reports whether a stream has the snapshots of a partition of whose journal old events were removed: without
// them the journal does not lead to the state, and an older snapshot may be intact.
func (r *run) shortened(name string) bool {
	plane, partition, ok := jetlog.ParseSnapshotStream(name)
	return ok && slices.ContainsFunc(r.journals, func(j *examined) bool {
		return j.of.plane == plane && j.of.number == partition &&
			slices.ContainsFunc(j.archived.parts, func(p *part) bool { return p.row.GetRemovedLines() > 0 })
	})
}

// renew moves the damaged streams whose Again is set, and no others, into r.replaced() and returns that directory, ""
// if it moved none. The next start of the server copies what they had from the journals again.
func (r *run) renew(damaged []derived.Report) (replaced string, err error) {
	for _, d := range damaged {
		if !d.Again {
			continue
		}
		replaced = r.replaced()
		if err := os.MkdirAll(replaced, 0o700); err != nil {
			return "", err
		}
		from := blockfile.Stream(r.store, r.Account, d.Name)
		if err := os.Rename(from, filepath.Join(replaced, d.Name)); err != nil {
			return "", err
		}
		if err := salvage.SyncDir(filepath.Dir(from)); err != nil {
			return "", err
		}
	}
	return replaced, nil
}
