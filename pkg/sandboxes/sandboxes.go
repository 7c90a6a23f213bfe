package sandboxes

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"quartet/pkg/confine"
	"quartet/pkg/localtoken"
)

// idleTerm is how long a sandbox in which nothing runs is kept, so that the programs of an
// agent that works share one.
const idleTerm = 30 * time.Second

// Pool has the open sandboxes of a worker by owner, such as an agent. It is safe for concurrent
// use.
type Pool struct {
	cfg   *Config
	dir   string // has the directories of the owners
	start confine.Launcher

	mu     sync.Mutex
	open   map[string]*openSandbox
	closed bool
}

// NewPool returns a pool of sandboxes. dir holds the homes and temporary directories of the owners,
// and is created when it is needed. start starts helpers; see confine.Open. If cfg is nil, programs
// are not confined.
func NewPool(cfg *Config, dir string, start confine.Launcher) *Pool {
	return &Pool{cfg: cfg, dir: dir, start: start}
}

// openSandbox is a sandbox that is open, is being opened or could not be opened.
type openSandbox struct {
	ready   chan struct{} // closed when sandbox or err is set
	sandbox *confine.Sandbox
	err     error
	users   int         // calls of Enter without leave; guarded by the mutex of the Pool
	idle    *time.Timer // closes the sandbox; nil while it has users
}

// Enter returns the sandbox of an owner, which it opens if necessary, or nil if programs are not
// confined. Programs in it may write to the directories in writable, which must be real paths, exist, and
// be the same in every call for an owner. If the error is nil, the caller must call the returned
// function when its programs have ended; further calls of it do nothing. The text of an error begins
// with confinement_unavailable.
func (s *Pool) Enter(owner string, writable []string) (*confine.Sandbox, func(), error) {
	if s.cfg == nil {
		return nil, func() {}, nil
	}
	o, opener := s.reserve(owner)
	if opener {
		o.sandbox, o.err = s.openFor(owner, writable)
		close(o.ready)
	}
	<-o.ready
	leave := sync.OnceFunc(func() { s.leave(owner, o) })
	if o.err != nil {
		leave()
		return nil, nil, unavailable(o.err)
	}
	return o.sandbox, leave, nil
}

// EnterAlone is Enter, but for a sandbox that no other program enters: it has the owner's home and temporary directory,
// and processes of its own. It is closed when its program leaves it.
func (s *Pool) EnterAlone(owner string, writable []string) (*confine.Sandbox, func(), error) {
	if s.cfg == nil {
		return nil, func() {}, nil
	}
	sandbox, err := s.openFor(owner, writable)
	if err != nil {
		return nil, nil, unavailable(err)
	}
	return sandbox, sync.OnceFunc(func() { _ = sandbox.Close() }), nil // nothing runs in it
}

// unavailable returns the error for a program whose sandbox cannot be opened.
func unavailable(err error) error {
	return fmt.Errorf("confinement_unavailable: %w; run the worker on Linux where user namespaces or Landlock are "+
		"allowed, or with --unconfined", err)
}

// openFor opens the sandbox of an owner.
func (s *Pool) openFor(owner string, writable []string) (*confine.Sandbox, error) {
	p := s.policy(owner, writable)
	config := filepath.Join(confine.Home(p.Dir), ".gitconfig")
	if _, err := os.Lstat(p.Dir); errors.Is(err, fs.ErrNotExist) {
		if identity := gitIdentity(); identity != "" {
			if err := os.MkdirAll(filepath.Dir(config), 0o700); err != nil {
				return nil, err
			}
			if err := os.WriteFile(config, []byte(identity), 0o600); err != nil {
				return nil, err
			}
		}
	}
	sandbox, err := confine.Open(p, s.cfg.Helper, s.start)
	if errors.Is(err, confine.ErrUnavailable) && removeEmptyTokenDir(p.Writable) {
		// Landlock alone hides nothing inside of a root, and there was no token to hide.
		return confine.Open(p, s.cfg.Helper, s.start)
	}
	return sandbox, err
}

// removeEmptyTokenDir removes the directory of token files if it is empty and inside of one of the roots. It reports
// whether it did. Earlier versions of the worker created it, and several workers may share a root.
func removeEmptyTokenDir(roots []string) bool {
	dir := places(localtoken.Dir())[0]
	inside := slices.ContainsFunc(roots, func(root string) bool { return strings.HasPrefix(dir, root+"/") })
	return inside && os.Remove(dir) == nil
}

// policy returns the policy of an owner's sandbox.
func (s *Pool) policy(owner string, writable []string) confine.Policy {
	sum := sha256.Sum256([]byte(owner))
	p := confine.Policy{
		Dir: filepath.Join(s.dir, hex.EncodeToString(sum[:12])), Writable: writable, Readable: s.cfg.readable(),
		Hidden:  s.cfg.hidden(),
		Network: s.cfg.Network, Level: s.cfg.Level,
	}
	p.Fixed, p.ReadOnly = protected(writable)
	return p
}

// reserve returns the sandbox of an owner and reports whether the caller has to open it.
func (s *Pool) reserve(owner string) (o *openSandbox, opener bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o = s.open[owner]; o != nil && o.usable() {
		if o.idle != nil {
			o.idle.Stop()
			o.idle = nil
		}
		o.users++
		return o, false
	}
	o = &openSandbox{ready: make(chan struct{}), users: 1}
	if s.open == nil {
		s.open = make(map[string]*openSandbox)
	}
	s.open[owner] = o
	return o, true
}

// usable reports whether the sandbox is open, or being opened.
func (o *openSandbox) usable() bool {
	select {
	case <-o.ready:
	default:
		return true
	}
	if o.err != nil {
		return false
	}
	select {
	case <-o.sandbox.Ended():
		return false
	default:
		return true
	}
}

// leave removes a user of a sandbox. If it was the last one, the sandbox is closed after idleTerm without
// users, or at once if it could not be opened, was replaced by another one, or the pool is closed.
func (s *Pool) leave(owner string, o *openSandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.users--; o.users > 0 {
		return
	}
	if o.err != nil || s.closed || s.open[owner] != o {
		s.drop(owner, o)
		return
	}
	o.idle = time.AfterFunc(idleTerm, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if o.users == 0 {
			s.drop(owner, o)
		}
	})
}

// drop closes a sandbox. The caller holds mu.
func (s *Pool) drop(owner string, o *openSandbox) {
	if s.open[owner] == o {
		delete(s.open, owner)
	}
	if o.sandbox != nil {
		_ = o.sandbox.Close() // nothing runs in it
	}
}

// Close closes the sandboxes without users. Every other one is closed when its last user leaves it. Enter does not
// refuse after Close: it opens a sandbox, which is closed in the same way.
func (s *Pool) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for owner, o := range s.open {
		if o.users == 0 {
			if o.idle != nil {
				o.idle.Stop()
			}
			s.drop(owner, o)
		}
	}
}
