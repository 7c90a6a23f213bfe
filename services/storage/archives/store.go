package archives

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/minio/minio-go/v7"

	"quartet/pkg/journal/archive"
)

// Names of objects: <plane>-<partition>/segment-<number>-<random>.frames, and catalog-<version>. The names of
// catalogs sort by version.
const (
	segmentPrefix = "segment-"
	segmentSuffix = ".frames"
	catalogPrefix = "catalog-"
)

// keptCatalogs is how many catalogs are kept. Only the newest one counts; the one before is for people.
const keptCatalogs = 2

// BucketStore keeps the archive of one partition.
type BucketStore struct {
	bucket *Bucket
	dir    string        // of all names
	known  atomic.Uint64 // a version that a catalog had; the newest one has this or a higher one
}

var _ archive.Store = (*BucketStore)(nil)

// Store returns the store of a partition.
func (b *Bucket) Store(plane string, partition int) *BucketStore {
	return &BucketStore{bucket: b, dir: b.location.key(plane + "-" + strconv.Itoa(partition))}
}

// Where returns the bucket and what the names of the objects begin with.
func (s *BucketStore) Where() string { return "s3://" + s.bucket.location.Bucket + "/" + s.dir }

// key returns the name of the object of a segment, or ErrNoObject if it cannot be one.
func (s *BucketStore) key(name string) (string, error) {
	rest, has := strings.CutPrefix(name, segmentPrefix)
	rest, ends := strings.CutSuffix(rest, segmentSuffix)
	if !has || !ends || strings.Trim(rest, "-0123456789abcdef") != "" {
		return "", fmt.Errorf("%w: %s has no segment %q", archive.ErrNoObject, s.Where(), name)
	}
	return s.dir + "/" + name, nil
}

// read returns the error for err, with which reading an object failed: ErrNoObject if the object or the part of it is
// not there.
func (s *BucketStore) read(key string, err error) error {
	if missing(err) || minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return fmt.Errorf("%w: s3://%s/%s: %w", archive.ErrNoObject, s.bucket.location.Bucket, key, err)
	}
	return s.bucket.failed("read "+key, err)
}

// Get implements archive.Store. It reads only these bytes of the object.
func (s *BucketStore) Get(ctx context.Context, name string, at uint64, n int64) ([]byte, error) {
	key, err := s.key(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dataTerm)
	defer cancel()
	var b []byte
	if n > 0 {
		b, _, err = s.bucket.part(ctx, key, int64(at), n)
	} else {
		_, err = s.bucket.client.StatObject(ctx, s.bucket.location.Bucket, key, minio.StatObjectOptions{})
	}
	if err != nil {
		return nil, s.read(key, err)
	}
	if int64(len(b)) != n {
		return nil, fmt.Errorf("%w: s3://%s/%s has %d bytes at %d, not %d", archive.ErrNoObject,
			s.bucket.location.Bucket, key, len(b), at, n)
	}
	return b, nil
}

// Last implements archive.Store. The last 8 bytes of an object are the length of the last object of the segment.
func (s *BucketStore) Last(ctx context.Context, name string) ([]byte, uint64, error) {
	key, err := s.key(name)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, dataTerm)
	defer cancel()
	end, size, err := s.bucket.part(ctx, key, -1, 8)
	if err != nil {
		return nil, 0, s.read(key, err)
	}
	if len(end) < 8 || binary.BigEndian.Uint64(end) > uint64(size-8) {
		return nil, 0, fmt.Errorf("%w: s3://%s/%s has %d bytes", archive.ErrNoObject, s.bucket.location.Bucket, key,
			size)
	}
	n := int64(binary.BigEndian.Uint64(end))
	b, err := s.Get(ctx, name, uint64(size-8-n), n)
	return b, uint64(size - 8 - n), err
}

// Names implements archive.Store.
func (s *BucketStore) Names(ctx context.Context) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, dataTerm)
	defer cancel()
	if err := s.bucket.own(ctx); err != nil {
		return nil, err
	}
	all := map[string]uint64{}
	for o := range s.bucket.client.ListObjectsIter(ctx, s.bucket.location.Bucket, minio.ListObjectsOptions{
		Prefix: s.dir + "/" + segmentPrefix,
	}) {
		if o.Err != nil {
			return nil, s.bucket.failed("list "+s.dir, o.Err)
		}
		name := strings.TrimPrefix(o.Key, s.dir+"/")
		if _, err := s.key(name); err != nil {
			continue
		}
		number, _, _ := strings.Cut(strings.TrimPrefix(name, segmentPrefix), "-")
		if n, err := strconv.ParseUint(number, 10, 64); err == nil {
			all[name] = n
		}
	}
	return all, nil
}

// Remove implements archive.Store.
func (s *BucketStore) Remove(ctx context.Context, name string) error {
	key, err := s.key(name)
	if err != nil {
		return nil // there is no such object
	}
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	return s.bucket.failed("remove "+key, s.bucket.remove(ctx, key))
}

// catalogKey returns the name of the catalog with a version.
func (s *BucketStore) catalogKey(version uint64) string {
	return fmt.Sprintf("%s/%s%020d", s.dir, catalogPrefix, version)
}

// newest returns the version of the newest catalog, 0 if there is none, and those of older ones.
func (s *BucketStore) newest(ctx context.Context) (version uint64, older []uint64, err error) {
	opts := minio.ListObjectsOptions{Prefix: s.dir + "/" + catalogPrefix}
	if known := s.known.Load(); known > keptCatalogs {
		opts.StartAfter = s.catalogKey(known - keptCatalogs)
	}
	for o := range s.bucket.client.ListObjectsIter(ctx, s.bucket.location.Bucket, opts) {
		if o.Err != nil {
			return 0, nil, s.bucket.failed("list "+s.dir, o.Err)
		}
		v, err := strconv.ParseUint(strings.TrimPrefix(o.Key, s.dir+"/"+catalogPrefix), 10, 64)
		if err != nil || v == 0 || o.Key != s.catalogKey(v) {
			continue
		}
		if version > 0 {
			older = append(older, version)
		}
		version = v // they are listed in order
	}
	s.known.Store(version)
	return version, older, nil
}

// Catalog implements archive.Store. It reads the next one if the catalog is replaced meanwhile.
func (s *BucketStore) Catalog(ctx context.Context) ([]byte, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	if err := s.bucket.own(ctx); err != nil {
		return nil, 0, err
	}
	for before := uint64(0); ; { // again if it is replaced meanwhile
		version, _, err := s.newest(ctx)
		if err != nil || version == 0 {
			return nil, 0, err
		}
		b, err := s.bucket.whole(ctx, s.catalogKey(version))
		if err == nil {
			return b, version, nil
		}
		if !missing(err) || version == before {
			return nil, 0, s.read(s.catalogKey(version), err)
		}
		before = version
	}
}

// ReplaceCatalog implements archive.Store. Of two writers of the same version one succeeds, since the server creates
// no object under a name that exists.
func (s *BucketStore) ReplaceCatalog(ctx context.Context, version uint64, content []byte) error {
	ctx, cancel := context.WithTimeout(ctx, dataTerm)
	defer cancel()
	if err := s.bucket.own(ctx); err != nil {
		return err
	}
	switch newest, _, err := s.newest(ctx); {
	case err != nil:
		return err
	case newest != version:
		return archive.ErrReplaced
	}
	key := s.catalogKey(version + 1)
	err := s.bucket.put(ctx, key, content, true)
	if exists(err) {
		// It is this one if the server's answer to an earlier attempt was lost.
		there, readErr := s.bucket.whole(ctx, key)
		switch {
		case readErr == nil && bytes.Equal(there, content):
			err = nil
		case readErr == nil:
			return archive.ErrReplaced
		}
	}
	if err != nil {
		return s.bucket.failed("write "+key, err)
	}
	// If others replaced the catalog several times since version was found to be the newest, its successor had been
	// removed again, so that it could be created once more.
	newest, older, err := s.newest(ctx)
	if err != nil {
		return err
	}
	if newest != version+1 {
		return archive.ErrReplaced
	}
	for _, v := range older {
		if v+keptCatalogs <= newest {
			_ = s.bucket.remove(ctx, s.catalogKey(v)) // if it stays, it takes room only
		}
	}
	return nil
}

// Empty reports whether there is no object of the partition.
func (s *BucketStore) Empty(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	for o := range s.bucket.client.ListObjectsIter(ctx, s.bucket.location.Bucket, minio.ListObjectsOptions{
		Prefix: s.dir + "/", MaxKeys: 1,
	}) {
		return false, s.bucket.failed("list "+s.dir, o.Err)
	}
	return true, ctx.Err()
}

// PutAside copies the object that is stored under a name to a file of that name in the directory dir, durably, and
// removes the object. It is no error if there is no such object.
func (s *BucketStore) PutAside(ctx context.Context, name, dir string) error {
	key, err := s.key(name)
	if err != nil {
		return nil // there is no such object
	}
	copying, cancel := context.WithTimeout(ctx, asideTerm)
	defer cancel()
	body, _, _, err := s.bucket.client.GetObject(copying, s.bucket.location.Bucket, key, minio.GetObjectOptions{})
	if missing(err) {
		return nil
	}
	if err != nil {
		return s.bucket.failed("read "+key, err)
	}
	defer body.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("archives: %w", err)
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("archives: %w", err)
	}
	_, err = io.Copy(f, body)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return s.bucket.failed("copy "+key, err)
	}
	return s.Remove(ctx, name)
}
