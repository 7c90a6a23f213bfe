// Package natsd runs the embedded NATS server and connects to any NATS server
// with the settings the journal's durability rests on.
//
// Owns: one nats-server with JetStream whose every write is fsynced
// (sync_interval always); the connection settings of R5.
// Never does: streams, subjects or messages; those are pkg/journal's and
// pkg/bus's.
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

// MaxPayload is the broker's largest message: a frame that holds one event of
// 3 MiB, and what a consumer may add to a full frame, stay below it.
const MaxPayload = 8 << 20

// InProcess as a port means that the server listens nowhere.
const InProcess = -1

// Config is what an embedded server needs.
type Config struct {
	StoreDir string
	// MaxStore bounds the disk space of all streams, in bytes; 0 takes what
	// the server finds reasonable. Without a bound a full disk is met first,
	// and that one stays wedged after space is freed.
	MaxStore int64
	// Port on the loopback interface; InProcess for none, 0 for a free one.
	Port int
	// Bulk syncs when the server sees fit, for who fills a directory that counts
	// for nothing before it is full, and syncs it then.
	Bulk   bool
	Logger *zap.Logger
}

// Server is an embedded NATS server.
type Server struct {
	opts   *server.Options
	logger *zap.Logger

	mu      sync.Mutex
	running *server.Server // nil after Stop
}

const startTimeout = 30 * time.Second

var errStopped = errors.New("natsd: server stopped")

// compactEvery is how often blocks of which most was purged are written anew, or
// removed. Output of commands comes and goes by hundreds of MB a minute.
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
		logger: cfg.Logger,
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
	// The default syncs every two minutes and loses acknowledged messages.
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
	s.running = nil
	s.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// Restart stops the server and starts it again over the same store: the way
// out of a disk that was full. Connections of Connect come back by themselves.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return errStopped
	}
	s.running.Shutdown()
	s.running.WaitForShutdown()
	srv, err := s.boot()
	s.running = srv
	return err
}

// URL is where the server listens, or "" if it does not.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil || s.opts.DontListen {
		return ""
	}
	return s.running.ClientURL()
}

// InProcessConn implements nats.InProcessConnProvider over the server of the
// moment, so that connections survive a Restart.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	srv := s.running
	s.mu.Unlock()
	if srv == nil {
		return nil, errStopped
	}
	return srv.InProcessConn()
}

// Connect connects within the process.
func (s *Server) Connect(name string) (*nats.Conn, error) {
	nc, err := nats.Connect("", append(Options(name), nats.InProcessServer(s))...)
	if err != nil {
		return nil, fmt.Errorf("natsd: connect in process: %w", err)
	}
	return nc, nil
}

// reconnectWait is the pause before a server is tried again.
const reconnectWait = 100 * time.Millisecond

// Options are the settings of every connection of Quartet: reconnect without limit,
// and keep nothing to be sent after a reconnect. A frame that was buffered and
// sent late would be one whose caller was told otherwise (R5).
func Options(name string) []nats.Option {
	return []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(5 * time.Second),
	}
}

// zapLogger takes the server's warnings and errors. Its notices are a banner
// and go to debug.
type zapLogger struct{ l *zap.SugaredLogger }

func (z zapLogger) Noticef(format string, v ...any) { z.l.Debugf(format, v...) }
func (z zapLogger) Warnf(format string, v ...any)   { z.l.Warnf(format, v...) }
func (z zapLogger) Errorf(format string, v ...any)  { z.l.Errorf(format, v...) }
func (z zapLogger) Debugf(format string, v ...any)  { z.l.Debugf(format, v...) }
func (z zapLogger) Tracef(string, ...any)           {}

// Fatalf does not end the process: the server is not the process's master
// here, and its caller learns of trouble from Start and from Health.
func (z zapLogger) Fatalf(format string, v ...any) { z.l.Errorf(format, v...) }
