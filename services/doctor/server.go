package doctor

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"quartet/pkg/natsd"
	"quartet/pkg/natsd/varz"
)

const (
	// fsyncNoted is the median time of small synced writes above which the disk is reported as slow. Each
	// frame of a journal, and so each mutation, waits for one such write. fsyncs is how many are measured.
	fsyncNoted = 20 * time.Millisecond
	fsyncs     = 15
	// freeNoted and freeBad are the free bytes of a disk below which the check disk reports a warning and
	// a problem.
	freeNoted, freeBad = 2 << 30, 128 << 20
	// certNoted is how long before a certificate expires it is reported.
	certNoted = 14 * 24 * time.Hour
)

// Server has the settings with which a server would run on this machine.
type Server struct {
	// Err is what is wrong with the settings. If it is not nil, the other fields are ignored.
	Err                        error
	DataDir, KeyFile           string
	NATS                       natsd.Remote
	GRPCAddr, HTTPAddr         string
	CertFile, TLSKeyFile       string
	AuthRequired, OpenToOthers bool   // OpenToOthers: a port is not on loopback
	AuthLocal                  bool   // credentials are required, and clients of this user find one
	Issuer                     string // of OpenID tokens; empty: none
	// of the client with which people sign in to the console; nil: there is none
	CheckSecret func() error
	Replicas    int    // of each journal
	MonitorURL  string // of the servers of NATS; empty: unknown
	MinPayload  int64  // bytes of a message that the servers of NATS must allow
	Archive     Archive
}

// Archive is the bucket or the directory with the archive.
type Archive struct {
	Name  string // empty: there is none
	Plain bool   // the bucket is on another machine, and the connection is not encrypted
	// Check writes, reads and removes an object.
	Check func(ctx context.Context) error
}

// server checks what a server on this machine would depend on. answered says that a server has
// answered the client, which may be the reason why ports are in use.
func (r *report) server(ctx context.Context, s Server, answered bool) {
	if s.Err != nil {
		r.add("settings", Problem, "correct it: docs/configuration.md has every setting", "%v", s.Err)
		return
	}
	r.ok("settings", "the settings go together")
	inUse := r.dataDir(s)
	r.keyFile(s)
	r.broker(ctx, s)
	r.archive(ctx, s.Archive)
	r.ports(ctx, s, answered || inUse)
	r.certificate(s)
	switch {
	case s.OpenToOthers && s.CertFile == "":
		r.add("exposure", Warning, "give tls-cert-file and tls-key-file, or keep the ports behind a proxy that "+
			"speaks TLS", "other machines reach the ports, and credentials travel in plain text")
	case s.OpenToOthers:
		r.ok("exposure", "other machines reach the ports, with TLS and credentials")
	case s.AuthRequired:
		r.ok("exposure", "only this machine reaches the ports, with credentials")
	case s.AuthLocal:
		r.ok("exposure",
			"only this machine reaches the ports; this user's programs find the credential, others need one")
	default:
		r.ok("exposure", "only this machine reaches the ports; every user, web page and command on it is the admin")
	}
	r.issuer(ctx, s)
	r.clientSecret(s)
}

// dataDir checks the data directory and its disk. It returns true if a server has the directory open,
// and false if none has or that cannot be determined.
func (r *report) dataDir(s Server) (inUse bool) {
	fi, err := os.Stat(s.DataDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := writable(parent(s.DataDir)); err != nil {
			r.add("data-dir", Problem, "choose another data-dir, or let this user write there",
				"%s is not there and cannot be made: %v", s.DataDir, err)
		} else {
			r.skip("data-dir", "%s is not there yet; a server makes it", s.DataDir)
		}
		r.skip("disk", "there is no data-dir yet")
		return false
	case err != nil:
		r.add("data-dir", Problem, "let this user reach it, or choose another data-dir", "%v", err)
		return false
	case !fi.IsDir():
		r.add("data-dir", Problem, "choose another data-dir", "%s is no directory", s.DataDir)
		return false
	}
	if err := writable(s.DataDir); err != nil {
		r.add("data-dir", Problem,
			"run the server as the user whose directory it is, or give it to this one (chown -R)",
			"this user cannot write to %s: %v", s.DataDir, err)
		return false
	}
	if fi.Mode().Perm()&0o077 != 0 {
		r.add("data-dir", Warning, "chmod 700 "+s.DataDir, "other users can look into %s (mode %o): journals and the "+
			"installation's key are there", s.DataDir, fi.Mode().Perm())
	} else {
		r.ok("data-dir", "%s belongs to this user alone", s.DataDir)
	}
	r.disk(s.DataDir, s.NATS.URL != "")
	return locked(filepath.Join(s.DataDir, "lock"))
}

// parent returns the nearest directory above path that exists.
func parent(path string) string {
	for {
		path = filepath.Dir(path)
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
	}
}

// writable creates and removes a file in dir, because permissions alone do not show that
// a file system is read-only.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".quartet-doctor-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// locked reports whether a server holds the lock of a data directory, which is the file path. It
// returns false if the file cannot be opened.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// disk checks the free space and the speed of the disk of dir. elsewhere says that the journals are on
// the servers of NATS: then dir has at most the agents' homes, its disk may be small, and its speed does not matter.
func (r *report) disk(dir string, elsewhere bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		r.skip("disk", "how full it is cannot be told: %v", err)
		return
	}
	free := uint64(st.Bavail) * uint64(st.Bsize) //nolint:unconvert // their types differ by system
	total := st.Blocks * uint64(st.Bsize)
	switch {
	case elsewhere && total < freeNoted && free > total/2:
		r.ok("disk", "%d of %d MiB are left; journals are on the servers of NATS", free>>20, total>>20)
	case free < freeBad:
		r.add("disk", Problem,
			"make room, or move data-dir to a larger disk: what cannot be written is refused with STORAGE",
			"%d MiB are left on the disk of %s", free>>20, dir)
	case free < freeNoted:
		r.add("disk", Warning, "make room soon, or move data-dir to a larger disk", "%d MiB are left on the disk of %s",
			free>>20, dir)
	default:
		r.ok("disk", "%d GiB are left", free>>30)
	}
	if elsewhere {
		r.skip("fsync", "journals are on the servers of NATS")
		return
	}
	took, err := syncedWrite(dir)
	switch {
	case err != nil:
		r.add("fsync", Problem, "see the system's log for errors of the disk",
			"a small file cannot be written and synced: %v", err)
	case took > fsyncNoted:
		r.add("fsync", Warning, "use a disk with a fast, power-safe cache; network disks and virtual ones with "+
			"barriers are slow. Every mutation waits for one", "a synced write takes %s in the median of %d",
			took.Round(time.Millisecond), fsyncs)
	default:
		r.ok("fsync", "a synced write takes %s in the median of %d", took.Round(10*time.Microsecond), fsyncs)
	}
}

// syncedWrite returns the median time of fsyncs writes of 4 KiB to a file in dir, each synced.
func syncedWrite(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, ".quartet-doctor-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4096)
	_, _ = rand.Read(block) // never fails
	var took []time.Duration
	for range fsyncs {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// keyFile checks the installation's key file: that only this user can read it.
func (r *report) keyFile(s Server) {
	fi, err := os.Stat(s.KeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.skip("key-file", "%s is not there yet; the first server makes it", s.KeyFile)
	case err != nil:
		r.add("key-file", Problem, "let the server's user read it", "%v", err)
	case fi.Mode().Perm()&0o077 != 0:
		r.add("key-file", Problem, "chmod 600 "+s.KeyFile+"; if somebody may have read it, all credentials that "+
			"services mint are theirs too", "other users can read %s (mode %o): whoever has it is the admin", s.KeyFile,
			fi.Mode().Perm())
	default:
		r.private("key-file", s.KeyFile)
	}
}

// private checks that a file that other users cannot read can be read by this one.
func (r *report) private(check, path string) {
	f, err := os.Open(path)
	if err != nil {
		r.add(check, Problem, "run as the server's user, or let it read the file", "%v", err)
		return
	}
	_ = f.Close()
	r.ok(check, "%s is there, for this user alone", path)
}

// broker checks the NATS servers at nats-url. Without nats-url there is nothing to check, since the server runs NATS
// itself.
func (r *report) broker(ctx context.Context, s Server) {
	if s.NATS.URL == "" {
		r.ok("nats", "the server brings its own")
		return
	}
	r.brokerFiles(s.NATS)
	ctx, cancel := context.WithTimeout(ctx, checkTerm)
	defer cancel()
	nc, err := s.NATS.Connect(ctx, "quartet-doctor", nil)
	var refused *natsd.Refused
	if errors.As(err, &refused) {
		r.add("nats", Problem, refused.Mend, "%s", refused.Text)
		return
	}
	if err != nil {
		r.add("nats", Problem, "correct the nats settings", "%v", err)
		return
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.AccountInfo(ctx)
	}
	if err != nil {
		r.add("nats", Problem, "switch JetStream on in its configuration, with sync_interval: always",
			"NATS is there and JetStream is not: %v", err)
		return
	}
	r.brokerSettings(ctx, s)
	if s.Replicas < 2 && nc.ConnectedClusterName() != "" {
		r.add("replicas", Warning, "give replicas 3 when an installation is created: the number of an existing "+
			"journal is changed at the NATS servers (nats stream edit --replicas)",
			"replicas is 1, and nats-url is the cluster %s: each journal is on one of its servers only",
			nc.ConnectedClusterName())
	}
	if servers := len(nc.Servers()); servers < s.Replicas {
		r.add("nats", Warning, "let all of the cluster's nodes run, or lower replicas",
			"replicas is %d, and %d server(s) of the cluster are known", s.Replicas, servers)
		return
	}
	switch plain := !s.NATS.Encrypted() && nc.ConnectedAddr() != "" && !local(nc.ConnectedAddr()); {
	case natsd.Redact(s.NATS.URL, s.NATS.URL) != s.NATS.URL:
		r.add("nats", Warning, "give nats-user and nats-password-file instead: addresses stand in lists of processes "+
			"and in environments", "NATS answers at %s, and nats-url has a credential in it", nc.ConnectedUrlRedacted())
	case plain:
		r.add("nats", Warning, "give the servers certificates, and nats-tls-ca-file here",
			"NATS answers at %s, and everything is said to it in plain text", nc.ConnectedUrlRedacted())
	default:
		r.ok("nats", "NATS %s answers at %s", nc.ConnectedServerVersion(), nc.ConnectedUrlRedacted())
	}
}

// archive checks the bucket or the directory of the archive.
func (r *report) archive(ctx context.Context, a Archive) {
	if a.Name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTerm)
	defer cancel()
	if err := a.Check(ctx); err != nil {
		text, remedy := err.Error(), "correct the setting archive, or see to the S3 server or the volume"
		if i := strings.LastIndex(text, "; "); i > 0 {
			text, remedy = text[:i], text[i+2:]
		}
		r.add("archive", Problem, remedy, "%s", text)
		return
	}
	if a.Plain {
		r.add("archive", Warning, "give the S3 server a certificate, and an endpoint with https",
			"%s can be written and read, and everything is said to it in plain text", a.Name)
		return
	}
	r.ok("archive", "%s can be written and read", a.Name)
}

// brokerSettings verifies the settings of the NATS servers that their monitoring ports show. Without a monitoring
// port it warns that the settings are not known.
func (r *report) brokerSettings(ctx context.Context, s Server) {
	const check = "sync_interval"
	if s.MonitorURL == "" {
		r.add(check, Warning, "see that it is always in the block jetstream of each server's configuration, and give "+
			"nats-monitor-url so that it is verified", "sync_interval of the NATS servers is not known, as "+
			"connections are not told: with any other value than always, mutations that were answered are lost when "+
			"a machine loses power")
		return
	}
	unknown, wrong := varz.Verify(ctx, s.MonitorURL, s.MinPayload)
	for _, text := range unknown {
		r.add(check, Warning, "correct nats-monitor-url, or start the server", "%s", text)
	}
	switch {
	case wrong != nil:
		r.add(check, Problem, "change it and restart the server; mutations of the past are safe if no machine lost "+
			"power meanwhile", "%v", wrong)
	case len(unknown) == 0:
		r.ok(check, "the NATS servers sync every write and allow the largest frames")
	}
}

// local reports whether an address, host:port, is a loopback address.
func local(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// brokerFiles checks the files with the credentials for the servers of NATS.
func (r *report) brokerFiles(n natsd.Remote) {
	for _, name := range slices.Sorted(maps.Keys(n.Files())) {
		path := n.Files()[name]
		fi, err := os.Stat(path)
		switch {
		case err != nil:
			r.add(name, Problem, "correct the path, or let this user read the file", "%v", err)
		case fi.Mode().Perm()&0o077 != 0:
			r.add(name, Problem, "chmod 600 "+path, "other users can read %s (mode %o): whoever has it writes journals",
				path, fi.Mode().Perm())
		default:
			r.private(name, path)
		}
	}
	if n.TLS.Cert != "" {
		r.certificateFile("nats-certificate", n.TLS.Cert, n.TLS.Key)
	}
}

// ports checks that a server could listen at the ports. A port in use is no problem if running
// is set, because then a server runs.
func (r *report) ports(ctx context.Context, s Server, running bool) {
	for _, port := range [][2]string{{"grpc-addr", s.GRPCAddr}, {"http-addr", s.HTTPAddr}} {
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", port[1])
		switch {
		case err == nil:
			_ = lis.Close()
			r.ok(port[0], "%s is free", port[1])
		case errors.Is(err, unix.EADDRINUSE) && running:
			r.ok(port[0], "%s is in use, and a server runs", port[1])
		case errors.Is(err, unix.EADDRINUSE):
			r.add(port[0], Problem, "end what has it (`ss -ltnp` tells what that is), or choose another "+port[0],
				"%s is taken by another program", port[1])
		case errors.Is(err, unix.EACCES):
			r.add(port[0], Problem, "choose a port above 1023, or give the program CAP_NET_BIND_SERVICE",
				"this user may not listen at %s", port[1])
		default:
			r.add(port[0], Problem, "correct "+port[0], "%v", err)
		}
	}
}

// certificate checks the server's certificate, if it has one.
func (r *report) certificate(s Server) {
	if s.CertFile != "" {
		r.certificateFile("certificate", s.CertFile, s.TLSKeyFile)
	}
}

// certificateFile checks that a certificate and its key belong together and that the certificate does not expire
// soon.
func (r *report) certificateFile(check, certFile, keyFile string) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	var leaf *x509.Certificate
	if err == nil {
		leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	if err != nil {
		r.add(check, Problem, "give a certificate and its key in PEM", "%s with %s: %v", certFile, keyFile, err)
		return
	}
	const mend = "renew it: replaced files are taken up without a restart"
	end := leaf.NotAfter.UTC().Format(time.RFC3339)
	switch left := time.Until(leaf.NotAfter); {
	case left <= 0:
		r.add(check, Problem, mend, "%s ended at %s", certFile, end)
	case left < certNoted:
		r.add(check, Warning, mend, "%s ends at %s", certFile, end)
	default:
		r.ok(check, "%s is good until %s", certFile, end)
	}
}

// issuer checks that the identity provider serves a discovery document, which it does not read. If none is
// configured, it adds no finding.
func (r *report) issuer(ctx context.Context, s Server) {
	if s.Issuer == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTerm)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.Issuer, "/")+
		"/.well-known/openid-configuration", nil)
	status := 0
	if err == nil {
		var resp *http.Response
		if resp, err = http.DefaultClient.Do(req); err == nil {
			status = resp.StatusCode
			_ = resp.Body.Close()
		}
	}
	const mend = "correct oidc-issuer, or let this machine reach it; keys work meanwhile"
	switch {
	case err != nil:
		r.add("oidc-issuer", Problem, mend, "the identity provider cannot be reached: %v", err)
	case status != http.StatusOK:
		r.add("oidc-issuer", Problem, mend, "%s has no discovery document: status %d", s.Issuer, status)
	default:
		r.ok("oidc-issuer", "%s answers", s.Issuer)
	}
}

// clientSecret reads the secret of the server's client at the identity provider.
func (r *report) clientSecret(s Server) {
	if s.CheckSecret == nil {
		return
	}
	if err := s.CheckSecret(); err != nil {
		r.add("sign-in", Problem, "correct the file; people sign in to the console with keys meanwhile", "%v", err)
	} else {
		r.ok("sign-in", "the secret of oidc-client-id can be read")
	}
}
