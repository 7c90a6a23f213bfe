package archives

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"

	"quartet/pkg/journal/archive"
)

// partBytes is the size of all parts of an upload but the last one. Servers demand at least 5 MiB, and some that all
// have the same.
const partBytes = 8 << 20

// abandoned is the age at which an upload that was not completed is removed, since its process must have ended. No
// listing of objects shows the room that it takes.
const abandoned = 24 * time.Hour

// draft is a segment that is being stored. A small one is kept until it is complete; of others the parts are uploaded,
// and become an object when all are there.
type draft struct {
	store     *BucketStore
	name, key string
	buffer    []byte // what is not uploaded
	at        uint64
	last      int

	upload    string // its id; empty: none was begun
	parts     []minio.CompletePart
	committed bool
}

// Begin implements archive.Store. It removes uploads of processes that ended long ago.
func (s *BucketStore) Begin(ctx context.Context, segment uint64) (archive.Draft, error) {
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	if err := s.bucket.own(ctx); err != nil {
		return nil, err
	}
	s.removeAbandoned(ctx)
	name := fmt.Sprintf("%s%d-%s%s", segmentPrefix, segment, unique(), segmentSuffix)
	return &draft{store: s, name: name, key: s.dir + "/" + name}, nil
}

// removeAbandoned removes uploads that are abandoned. They take room only, so it is no error if that fails: some
// servers keep uploads for a few days at most, and have no list of them.
func (s *BucketStore) removeAbandoned(ctx context.Context) {
	b := s.bucket
	all, err := b.client.ListMultipartUploads(ctx, b.location.Bucket, s.dir+"/"+segmentPrefix, "", "", "", 1000)
	if err != nil {
		return
	}
	for _, u := range all.Uploads {
		if b.cfg.Now().Sub(u.Initiated) > abandoned {
			_ = b.client.AbortMultipartUpload(ctx, b.location.Bucket, u.Key, u.UploadID)
		}
	}
}

// Add implements archive.Draft.
func (d *draft) Add(ctx context.Context, object []byte) (uint64, error) {
	at := d.at
	d.buffer = append(d.buffer, object...)
	d.at, d.last = d.at+uint64(len(object)), len(object)
	for len(d.buffer) >= partBytes {
		if err := d.part(ctx, d.buffer[:partBytes]); err != nil {
			return 0, err
		}
		d.buffer = append(d.buffer[:0], d.buffer[partBytes:]...)
	}
	return at, nil
}

// part uploads a part.
func (d *draft) part(ctx context.Context, content []byte) error {
	ctx, cancel := context.WithTimeout(ctx, dataTerm)
	defer cancel()
	b := d.store.bucket
	if d.upload == "" {
		id, err := b.client.NewMultipartUpload(ctx, b.location.Bucket, d.key, minio.PutObjectOptions{
			UserMetadata: map[string]string{checksumAlgorithm: "SHA256"},
		})
		if err != nil {
			return b.failed("begin to write "+d.key, err)
		}
		d.upload = id
	}
	sum := sha256.Sum256(content)
	header := http.Header{}
	header.Set(checksumHeader, checksum(content))
	p, err := b.client.PutObjectPart(ctx, b.location.Bucket, d.key, d.upload, len(d.parts)+1, bytes.NewReader(content),
		int64(len(content)), minio.PutObjectPartOptions{Sha256Hex: hex.EncodeToString(sum[:]), CustomHeader: header})
	if err != nil {
		return b.failed("write "+d.key, err)
	}
	d.parts = append(d.parts, minio.CompletePart{
		PartNumber: p.PartNumber, ETag: p.ETag,
		ChecksumSHA256: checksum(content),
	})
	return nil
}

// Commit implements archive.Draft.
func (d *draft) Commit(ctx context.Context) (string, error) {
	b := d.store.bucket
	d.buffer = binary.BigEndian.AppendUint64(d.buffer, uint64(d.last))
	if d.upload != "" {
		if err := d.part(ctx, d.buffer); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dataTerm)
	defer cancel()
	var err error
	if d.upload == "" {
		err = b.put(ctx, d.key, d.buffer, false)
	} else {
		_, err = b.client.CompleteMultipartUpload(ctx, b.location.Bucket, d.key, d.upload, d.parts,
			minio.PutObjectOptions{})
	}
	if err != nil {
		return "", b.failed("write "+d.key, err)
	}
	d.committed = true
	return d.name, nil
}

// Close implements archive.Draft.
func (d *draft) Close() {
	d.buffer = nil
	if d.committed || d.upload == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTerm)
	defer cancel()
	// see removeAbandoned
	_ = d.store.bucket.client.AbortMultipartUpload(ctx, d.store.bucket.location.Bucket, d.key, d.upload)
}
