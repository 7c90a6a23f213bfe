package app

import (
	"context"

	"go.uber.org/zap"

	"quartet/pkg/keyfile"
	"quartet/pkg/life"
)

// followKeyFile returns the module that reads the key file again every keyfile.PollPeriod. If it
// cannot be used, the keys stay as they are, and the error is logged once.
func followKeyFile(keys *keyfile.Source, logger *zap.Logger) life.Service {
	last := ""
	return &life.Periodic{Label: "key-file", Period: keyfile.PollPeriod, Do: func(context.Context) {
		changed, err := keys.Poll()
		switch {
		case err != nil && err.Error() != last:
			last = err.Error()
			logger.Error("the key file cannot be used; the keys stay as they are", zap.Error(err))
		case err == nil:
			last = ""
		}
		if changed {
			logger.Info("the installation's keys have changed", zap.Strings("keys", keys.Ring().IDs()),
				zap.String("active", keys.Ring().Active().ID))
		}
	}}
}
