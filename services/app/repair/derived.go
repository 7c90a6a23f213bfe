package repair

import (
	"os"
	"path/filepath"

	"quartet/pkg/bus"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
)

// Derived is a stream that is not a journal and is damaged.
type Derived struct {
	Name   string
	Damage []string
	// Again says that what it has is copied again from the journals at the next start, once Apply has moved the
	// damaged stream away. Otherwise what cannot be read is gone.
	Again bool
}

// examineDerived reads the blocks of the streams that are not journals.
func (r *run) examineDerived() (damaged []Derived, err error) {
	for _, d := range []Derived{{Name: bus.Stream, Again: true}, {Name: r.Output}} {
		files, err := blockfile.Files(blockfile.Messages(r.store, r.Account, d.Name))
		if err != nil {
			return nil, err
		}
		for i, file := range files {
			b, err := os.ReadFile(file.Path)
			if err != nil {
				return nil, err
			}
			gaps, err := blockfile.Read(d.Name, file.Index, b, []string{"quartet."}, func(blockfile.Record) error { return nil })
			if err != nil {
				return nil, err
			}
			for _, gap := range gaps {
				// The end of a stream that is not synced may be missing after a loss of power.
				if i < len(files)-1 || !gap.Tail() {
					d.Damage = append(d.Damage, file.Path+", "+gap.String())
				}
			}
		}
		if len(d.Damage) > 0 {
			damaged = append(damaged, d)
		}
	}
	return damaged, nil
}

// renew moves the damaged streams away that are copied again from the journals, and returns where they are.
func (r *run) renew(damaged []Derived) (replaced string, err error) {
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
