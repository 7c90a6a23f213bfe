package app

import (
	"encoding/base64"
	"net"
	"sync"

	"go.uber.org/zap"

	"quartet/pkg/keyfile"
	"quartet/pkg/localtoken"
)

// localToken derives the local token from a key of the installation, so that it is the same after a
// restart and another one with another data directory. It is valid only where auth is local.
func localToken(key keyfile.Key) string {
	return localtoken.Prefix + base64.RawURLEncoding.EncodeToString(key.Derive("local token"))
}

// tokenFiles are the token files of a process, one for each address at which it listens. The methods of
// a nil tokenFiles do nothing.
type tokenFiles struct {
	token  string
	logger *zap.Logger

	mu    sync.Mutex
	files map[string]*localtoken.File // by address
}

// publish writes the token file of an address at which the process listens.
func (t *tokenFiles) publish(addr net.Addr) error {
	if t == nil {
		return nil
	}
	f, err := localtoken.Publish(addr.String(), t.token)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.files == nil {
		t.files = make(map[string]*localtoken.File)
	}
	t.files[addr.String()] = f
	return nil
}

// remove removes the token file of an address at which the process is about to listen no longer.
func (t *tokenFiles) remove(addr net.Addr) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.files[addr.String()].Remove(); err != nil {
		t.logger.Warn("the token file was not removed; it is useless when this process has ended", zap.Error(err))
	}
	delete(t.files, addr.String())
}

// path returns the path of the token file of an address, "" if there is none.
func (t *tokenFiles) path(addr string) string {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.files[addr]; f != nil {
		return f.Path()
	}
	return ""
}
