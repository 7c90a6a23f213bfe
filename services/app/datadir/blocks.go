package datadir

import (
	"time"

	"go.uber.org/zap"

	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
	"quartet/pkg/natsd/salvage"
)

// CheckBlocks checks the blocks of the planes' journals before the embedded server opens them.
func CheckBlocks(dir, account string, planes []string, logger *zap.Logger) error {
	s := salvage.Config{Store: Store(dir), Account: account, Dir: Salvage(dir), Now: time.Now(), Logger: logger}
	for _, plane := range planes {
		known, err := witness.Newest(Witness(dir), plane)
		if err != nil {
			return err
		}
		s.Streams = append(s.Streams, salvage.Stream{Name: jetlog.StreamName(plane), Subjects: []string{jetlog.SubjectPrefix(plane)}, Known: known})
	}
	_, err := salvage.Check(s)
	return err
}
