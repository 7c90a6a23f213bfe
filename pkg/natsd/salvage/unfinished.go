package salvage

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"quartet/pkg/natsd/blockfile"
)

// The files in which a server has the configuration of a stream, and the checksum of the configuration.
const (
	configFile = "meta.inf"
	configSum  = "meta.sum"
)

// Finish completes the streams that a server was creating when it died. The server must not run. A server writes the
// configuration of a stream and then its checksum, and does not write a missing checksum later. A stream without a
// checksum accepts messages when it is created once more, but every later start of the server ignores the stream with
// all its messages. Finish writes the missing checksum. If only a part of the configuration was written, it
// removes the stream, unless that has messages.
func Finish(store, account string, logger *zap.Logger) error {
	dir := filepath.Dir(blockfile.Stream(store, account, "any"))
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("salvage: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := finish(filepath.Join(dir, e.Name()), e.Name(), logger); err != nil {
			return fmt.Errorf("salvage: stream %s: %w", e.Name(), err)
		}
	}
	return nil
}

// finish completes one stream.
func finish(dir, name string, logger *zap.Logger) error {
	if sum, err := os.Stat(filepath.Join(dir, configSum)); err == nil && sum.Size() > 0 || err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		return err
	}
	config, err := os.ReadFile(filepath.Join(dir, configFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var named struct{ Name string }
	if json.Unmarshal(config, &named) == nil && named.Name == name {
		logger.Warn("completed a stream that the server was creating when it died", zap.String("stream", name))
		return errors.Join(Write(filepath.Join(dir, configSum),
			[]byte(hex.EncodeToString(blockfile.ConfigSum(name, config)))), SyncDir(dir))
	}
	files, err := blockfile.Files(filepath.Join(dir, "msgs"))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := os.ReadFile(file.Path)
		if err != nil {
			return err
		}
		messages := 0
		gaps, err := blockfile.Read(name, file.Index, b, []string{""}, func(r blockfile.Record) error {
			if r.Message() {
				messages++
			}
			return nil
		})
		if err != nil || len(gaps) > 0 || messages > 0 {
			return err // loading the journal says what is missing
		}
	}
	logger.Warn("removed a stream that the server was creating when it died", zap.String("stream", name))
	return errors.Join(os.RemoveAll(dir), SyncDir(filepath.Dir(dir)))
}
