// Package natsd runs the embedded NATS server, and connects to any NATS server with the
// settings that the durability of journals requires.
//
// Owns: one nats-server with JetStream whose every write is fsynced
// (sync_interval always); the settings of all connections, which never buffer what is sent (R5).
// Never does: create streams or send messages (pkg/journal, pkg/bus).
package natsd

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

// MaxPayload is the broker's maximum message size. A frame with one event of 3 MiB stays
// below it, and so does a full frame with what a consumer adds.
const MaxPayload = 8 << 20

// InProcess as Config.Port means that the server listens on no port, and that only this process can connect.
const InProcess = -1

// Config holds the settings of an embedded server.
type Config struct {
	StoreDir string
	// MaxStore bounds the disk space of all streams, in bytes; 0 means the server's default.
	// It should be less than the free space, because a server that could not write to a full disk
	// does not recover when space is freed, until Restart.
	MaxStore int64
	// Port is the port on the loopback interface; InProcess means none, 0 a free one.
	Port int
	// Bulk means that writes are not synced one by one. It is only for a caller that fills a
	// directory, syncs it at the end, and discards it after a failure.
	Bulk bool
	// BeforeOpen is called each time before a server opens the store, also by Restart. If it returns an
	// error, the server is not started. Optional.
	BeforeOpen func() error
	Logger     *zap.Logger
}

// Server is an embedded NATS server.
type Server struct {
	opts       *server.Options
	beforeOpen func() error
	logger     *zap.Logger

	mu      sync.Mutex
	running *server.Server // nil after Stop, and after a Restart that failed
	stopped bool           // Stop was called
}

const startTimeout = 30 * time.Second

var errStopped = errors.New("natsd: server stopped")

// compactEvery is how often the server rewrites or removes blocks of which most is purged.
// Commands can write and release hundreds of MB of output a minute.
const compactEvery = 20 * time.Second

// Start starts a server and returns when JetStream is ready.
func Start(cfg Config) (*Server, error) {
	if cfg.StoreDir == "" {
		return nil, errors.New("natsd: Config needs StoreDir")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	s := &Server{
		logger: cfg.Logger, beforeOpen: cfg.BeforeOpen,
		opts: &server.Options{
			ServerName:        "quartet",
			Host:              "127.0.0.1",
			Port:              cfg.Port,
			JetStream:         true,
			StoreDir:          cfg.StoreDir,
			JetStreamMaxStore: cfg.MaxStore,
			SyncAlways:        !cfg.Bulk,
			SyncInterval:      compactEvery,
			MaxPayload:        MaxPayload,
			MaxPending:        64 << 20,
			NoSigs:            true,
			NoLog:             true,
			NoSystemAccount:   true,
		},
	}
	switch cfg.Port {
	case InProcess:
		s.opts.DontListen = true
		s.opts.Port = 0
	case 0:
		s.opts.Port = server.RANDOM_PORT
	}
	var err error
	s.running, err = s.boot()
	return s, err
}

func (s *Server) boot() (*server.Server, error) {
	if s.beforeOpen != nil {
		if err := s.beforeOpen(); err != nil {
			return nil, fmt.Errorf("natsd: %w", err)
		}
	}
	srv, err := server.NewServer(s.opts.Clone())
	if err != nil {
		return nil, fmt.Errorf("natsd: %w", err)
	}
	srv.SetLoggerV2(zapLogger{s.logger.Sugar()}, false, false, false)
	srv.Start()
	if !srv.ReadyForConnections(startTimeout) || !srv.JetStreamEnabled() {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, errors.New("natsd: the server did not become ready; see its log for why")
	}
	// The default of NATS syncs every two minutes, and a crash then loses acknowledged messages.
	if cfg := srv.JetStreamConfig(); cfg == nil || cfg.SyncAlways != s.opts.SyncAlways {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, errors.New("natsd: the server does not sync every write")
	}
	return srv, nil
}

// Stop stops the server and returns when its files are closed. It is
// idempotent.
func (s *Server) Stop() {
	s.mu.Lock()
	srv := s.running
	s.running, s.stopped = nil, true
	s.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// Restart stops the server and starts it again over the same store, which is necessary after
// the disk was full. Connections of Connect reconnect by themselves. With Port 0 the server may
// listen on another port afterwards. After an error no server runs, and Restart may be called again,
// except after Stop.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	if s.running != nil {
		s.running.Shutdown()
		s.running.WaitForShutdown()
		s.running = nil
	}
	srv, err := s.boot()
	s.running = srv
	return err
}

// URL returns the address at which the server listens; "" if it does not run or listens on no port.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil || s.opts.DontListen {
		return ""
	}
	return s.running.ClientURL()
}

// Usage returns how many bytes all streams use, and how many they may use; an error while no server runs.
func (s *Server) Usage() (used, limit int64, err error) {
	s.mu.Lock()
	srv := s.running
	s.mu.Unlock()
	if srv == nil {
		return 0, 0, errStopped
	}
	info, err := srv.Jsz(nil)
	if err != nil {
		return 0, 0, fmt.Errorf("natsd: %w", err)
	}
	if info.Disabled {
		return 0, 0, errors.New("natsd: the server has switched JetStream off; its log says why")
	}
	return int64(info.Store), info.Config.MaxStore, nil
}

// InProcessConn implements nats.InProcessConnProvider. It connects to the server that runs now, so
// that a connection that is made again after a Restart reaches the new server.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	srv := s.running
	s.mu.Unlock()
	if srv == nil {
		return nil, errStopped
	}
	return srv.InProcessConn()
}

// Connect returns a connection to the server within the process, with the settings of Options.
func (s *Server) Connect(name string) (*nats.Conn, error) {
	nc, err := nats.Connect("", append(Options(name), nats.InProcessServer(s))...)
	if err != nil {
		return nil, fmt.Errorf("natsd: connect in process: %w", err)
	}
	return nc, nil
}

// reconnectWait is the pause before a server is tried again.
const reconnectWait = 100 * time.Millisecond

// pingInterval is how often a connection pings its server. After two pings without an answer it connects again, to
// another server if there are several, so that a server that hangs costs its clients at most ten seconds.
const pingInterval = 3 * time.Second

// Options returns the settings of all connections: they reconnect without limit, and buffer
// nothing while disconnected. Otherwise a frame could be buffered, sent late and stored although
// its caller received an error (R5).
func Options(name string) []nats.Option {
	return []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(5 * time.Second),
	}
}

// zapLogger logs the server's warnings and errors. Its notices are a banner and are logged at
// debug level.
type zapLogger struct{ l *zap.SugaredLogger }

func (z zapLogger) Noticef(format string, v ...any) { z.l.Debugf(format, v...) }
func (z zapLogger) Warnf(format string, v ...any)   { z.l.Warnf(format, v...) }
func (z zapLogger) Errorf(format string, v ...any)  { z.l.Errorf(format, v...) }
func (z zapLogger) Debugf(format string, v ...any)  { z.l.Debugf(format, v...) }
func (z zapLogger) Tracef(string, ...any)           {}

// Fatalf does not exit the process; Start and Ready of the services report the failure.
func (z zapLogger) Fatalf(format string, v ...any) { z.l.Errorf(format, v...) }
