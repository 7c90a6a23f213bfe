// Package bucket runs an S3 server for tests, in a process that they can kill.
package bucket

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/tests/proc"
)

// The credentials of a Server, and its bucket.
const (
	AccessKey = "quartet-test"
	SecretKey = "a secret of the tests only"
	Name      = "journals"
)

// Server is an S3 server over a directory. It can be started again after it has ended.
type Server struct {
	proc.Process
	// Dir has the buckets, which are directories with the objects as files.
	Dir  string
	Addr string
	// CA is the file with the certificate of the server's authority; empty: it is spoken to without TLS.
	CA string
}

// Start starts a server that has the bucket Name. It ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, freeAddr(t), "", "", "")
}

// StartAt is Start with an address that others can reach, for a test that has a network of its own.
func StartAt(t testing.TB, addr string) *Server {
	t.Helper()
	return start(t, addr, "", "", "")
}

// StartTLS starts a server with a certificate, of which ca is the file with the certificate of the authority.
func StartTLS(t testing.TB, ca, cert, key string) *Server {
	t.Helper()
	return start(t, freeAddr(t), ca, cert, key)
}

func freeAddr(t testing.TB) string {
	t.Helper()
	return must.Value(proc.FreeAddr())(t)
}

func start(t testing.TB, addr, ca, cert, key string) *Server {
	t.Helper()
	proc.Long(t)
	binary := must.Value(Build())(t)
	dir := t.TempDir()
	s := &Server{Dir: filepath.Join(dir, "buckets"), Addr: addr, CA: ca}
	require.NoError(t, os.MkdirAll(filepath.Join(s.Dir, Name), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "state"), 0o700))
	args := []string{
		"-dir", s.Dir, "-state", filepath.Join(dir, "state"), "-addr", addr, "-access-key", AccessKey,
		"-secret-key", SecretKey,
	}
	if cert != "" {
		args = append(args, "-cert", cert, "-key", key)
	}
	s.Process = proc.Process{Binary: binary, Args: args, Log: filepath.Join(dir, "s3server.log"), Ready: s.ready}
	s.Run(t)
	t.Cleanup(func() { _ = s.Kill() })
	return s
}

// Run starts the server again.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.Start(ctx))
}

// ready reports whether the server answers.
func (s *Server) ready(ctx context.Context) bool {
	if s.CA == "" {
		return proc.OK(ctx, "http://"+s.Addr+"/health")
	}
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", s.Addr)
	return err == nil && c.Close() == nil
}

// URL returns the setting archive for a prefix of the bucket.
func (s *Server) URL(prefix string) string {
	scheme := "http://"
	if s.CA != "" {
		scheme = "https://"
	}
	return "s3://" + Name + "/" + prefix + "?endpoint=" + scheme + s.Addr
}

// Object returns the path of the file of an object of the bucket Name.
func (s *Server) Object(key string) string {
	return filepath.Join(s.Dir, Name, filepath.FromSlash(key))
}

// Credentials writes a file with credentials and returns its path.
func Credentials(t testing.TB, access, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials")
	require.NoError(t, os.WriteFile(path, []byte("access_key_id = "+access+"\nsecret_access_key = "+secret+"\n"),
		0o600))
	return path
}

// Build returns the binary of the server, which is a module of its own. The go command keeps what it linked before.
var Build = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	source := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "tests", "s3server")
	dir, err := os.MkdirTemp("", "quartet-s3server-")
	if err != nil {
		return "", err
	}
	return proc.Build(dir, ".", "s3server", "-C", source)
})
