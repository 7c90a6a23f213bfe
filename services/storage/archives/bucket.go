package archives

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"quartet/pkg/journal/archive"
)

const (
	// term bounds an operation on a small object, with all its attempts, and dataTerm one on a large object.
	term     = 20 * time.Second
	dataTerm = 2 * time.Minute
	// dialTerm bounds connecting to the server, and answerTerm waiting for the beginning of an answer.
	dialTerm   = 5 * time.Second
	answerTerm = 60 * time.Second
	// asideTerm bounds copying a segment out of the bucket.
	asideTerm = 30 * time.Minute
	// closeTerm bounds the removal of what was not stored completely.
	closeTerm = 5 * time.Second
	// attempts is how often a request is sent at most. An archive.Archiver tries again later.
	attempts = 3
)

// markName is the object that says to which installation a prefix belongs, with the ids of its keys in lines.
const markName = archive.MarkFile

// BucketConfig says which bucket is used, and how.
type BucketConfig struct {
	Location Location
	// CredentialsFile has the credentials; empty: see open.
	CredentialsFile string
	// CAFile has the certificates (PEM) of the authorities that sign the server's; empty: the system's.
	CAFile string
	Now    func() time.Time
}

// Bucket has the archives of all partitions of an installation. It is safe for concurrent use.
type Bucket struct {
	cfg      BucketConfig
	location Location
	client   minio.Core

	mu     sync.Mutex
	owner  func() []string // the ids of the installation's keys; nil: it is not compared
	marked []string        // the ids that the mark is known to have
}

// OpenBucket returns a bucket. It sends no request.
func OpenBucket(cfg BucketConfig) (*Bucket, error) {
	creds, err := open(cfg.CredentialsFile)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTerm, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: dialTerm, ResponseHeaderTimeout: answerTerm,
		MaxIdleConns: 16, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, ExpectContinueTimeout: time.Second,
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("archive-ca-file: %w", err)
		}
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("archive-ca-file %s has no certificate in PEM", cfg.CAFile)
		}
	}
	core, err := minio.NewCore(cfg.Location.host(), &minio.Options{
		Creds: creds, Secure: !cfg.Location.Plain, Transport: transport, Region: cfg.Location.Region,
		MaxRetries: attempts,
	})
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	return &Bucket{cfg: cfg, location: cfg.Location, client: *core}, nil
}

// Location returns where the archives are.
func (b *Bucket) Location() Location { return b.location }

// Own makes the bucket check that the prefix belongs to this installation, before a catalog is read or anything is
// written, and take the prefix if it belongs to none. ids returns the ids of this installation's keys; the prefix
// belongs to it if the mark names one of them.
func (b *Bucket) Own(ids func() []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owner = ids
}

// Owned returns ErrForeign if the prefix belongs to another installation than that of Own.
func (b *Bucket) Owned(ctx context.Context) error { return b.own(ctx) }

// own implements Owned; it must be called before the prefix is used. It writes the mark if there is none, or if keys
// were added.
func (b *Bucket) own(ctx context.Context) error {
	b.mu.Lock()
	owner, marked := b.owner, b.marked
	b.mu.Unlock()
	if owner == nil {
		return nil
	}
	ids := slices.Sorted(slices.Values(owner()))
	if len(ids) == 0 || slices.Equal(ids, marked) {
		return nil
	}
	key := b.location.key(markName)
	for range attempts {
		raw, err := b.whole(ctx, key)
		switch {
		case missing(err):
			err = b.put(ctx, key, []byte(strings.Join(ids, "\n")+"\n"), true)
			if exists(err) {
				continue // by another process at the same time
			}
		case err == nil:
			there := strings.Fields(string(raw))
			shared := slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(there, id) })
			added := slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(there, id) })
			if !shared {
				return fmt.Errorf("bucket %s: %w: the object %s names none of the keys of this one; give each "+
					"installation a prefix of its own", b.location, ErrForeign, key)
			}
			if added { // keys were changed
				err = b.put(ctx, key, []byte(strings.Join(ids, "\n")+"\n"), false)
			}
		}
		if err != nil {
			return b.failed("find out whose it is", err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.marked = ids
		return nil
	}
	return fmt.Errorf("bucket %s: the object %s was created and removed meanwhile", b.location, key)
}

// Partitions returns how many partitions of a plane have an archive, counted up to the last that has one.
func (b *Bucket) Partitions(ctx context.Context, plane string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	n := 0
	prefix := b.location.key(plane + "-")
	for o := range b.client.ListObjectsIter(ctx, b.location.Bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return 0, b.failed("list", o.Err)
		}
		if i, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(o.Key, prefix), "/")); err == nil && i >= 0 {
			n = max(n, i+1)
		}
	}
	return n, nil
}

// Check finds out whether the bucket can be used: it exists, the prefix belongs to this installation (if Own was
// called; a prefix that belongs to none is taken), and an object can be created, not created a second time, read in
// part, and removed. It creates an object of its own for this, and removes it also after an error.
func (b *Bucket) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	if err := b.own(ctx); err != nil {
		return err
	}
	key := b.location.key("check-" + unique())
	content := []byte("quartet")
	if err := b.put(ctx, key, content, true); err != nil {
		return b.failed("write", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTerm)
		defer cancel()
		_ = b.remove(ctx, key) // a second time, if the removal below failed
	}()
	switch err := b.put(ctx, key, []byte("other"), true); {
	case err == nil:
		return fmt.Errorf("bucket %s: the server wrote an object that was to be created only if there is none "+
			"(If-None-Match); two processes could lose what each other archived, so choose a server that has "+
			"conditional writes", b.location)
	case !exists(err):
		return b.failed("write what exists already", err)
	}
	switch got, _, err := b.part(ctx, key, 2, 3); {
	case err != nil:
		return b.failed("read", err)
	case !bytes.Equal(got, content[2:5]):
		return fmt.Errorf("bucket %s: the server returned other bytes of an object than were asked for", b.location)
	}
	return b.failed("remove", b.remove(ctx, key))
}

// checksum returns the checksum of bytes, as a header has it.
func checksum(content []byte) string {
	sum := sha256.Sum256(content)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// The headers of checksums.
const (
	checksumHeader    = "x-amz-checksum-sha256"
	checksumAlgorithm = "x-amz-checksum-algorithm"
)

// put writes an object with its checksum. If once is set and there is one already, it writes nothing, and returns an
// error for which exists is true.
func (b *Bucket) put(ctx context.Context, key string, content []byte, once bool) error {
	sum := sha256.Sum256(content)
	opts := minio.PutObjectOptions{UserMetadata: map[string]string{checksumHeader: checksum(content)}}
	if once {
		opts.SetMatchETagExcept("*")
	}
	_, err := b.client.PutObject(ctx, b.location.Bucket, key, bytes.NewReader(content), int64(len(content)), "",
		hex.EncodeToString(sum[:]), opts)
	return err
}

// remove removes an object. It is no error if it is not there.
func (b *Bucket) remove(ctx context.Context, key string) error {
	err := b.client.RemoveObject(ctx, b.location.Bucket, key, minio.RemoveObjectOptions{})
	if missing(err) {
		return nil
	}
	return err
}

// maxWhole is how large an object may be that is read whole: a catalog has less than 500 bytes for each segment.
const maxWhole = 256 << 20

// whole returns an object.
func (b *Bucket) whole(ctx context.Context, key string) ([]byte, error) {
	content, _, err := b.get(ctx, key, minio.GetObjectOptions{}, maxWhole)
	return content, err
}

// part returns n bytes of an object from at on, n > 0, and the size of the object. If at < 0, these are the last n
// bytes. It returns fewer bytes if there are no more.
func (b *Bucket) part(ctx context.Context, key string, at, n int64) (content []byte, size int64, err error) {
	var opts minio.GetObjectOptions
	if at < 0 {
		err = opts.SetRange(0, -n)
	} else {
		err = opts.SetRange(at, at+n-1)
	}
	if err != nil {
		return nil, 0, err
	}
	content, header, err := b.get(ctx, key, opts, n)
	if err != nil {
		return nil, 0, err
	}
	var from, to int64
	got := header.Get("Content-Range")
	if _, err := fmt.Sscanf(got, "bytes %d-%d/%d", &from, &to, &size); err != nil || to-from+1 != int64(len(content)) ||
		at >= 0 && from != at || at < 0 && to != size-1 {
		return nil, 0, fmt.Errorf("%w: of %d bytes at %d it returned %d, %q", errRange, n, at, len(content), got)
	}
	return content, size, nil
}

// errRange means that the server returned something else than the part of an object that was asked for.
var errRange = errors.New("the server does not answer requests for a part of an object as it must")

// get returns what the server answers to a request for an object or a part of one, of at most limit bytes.
func (b *Bucket) get(ctx context.Context, key string, opts minio.GetObjectOptions, limit int64) ([]byte, http.Header,
	error,
) {
	body, _, header, err := b.client.GetObject(ctx, b.location.Bucket, key, opts)
	if err != nil {
		return nil, nil, err
	}
	defer body.Close()
	content, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, nil, err
	}
	if int64(len(content)) > limit {
		return nil, nil, fmt.Errorf("%w: %s has more than %d bytes", errRange, key, limit)
	}
	return content, header, nil
}

// unique returns a part of a name that no other one has.
func unique() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	return hex.EncodeToString(random[:])
}
