package archives

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"quartet/pkg/clock"
	"quartet/pkg/conf"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/archive/streamstore"
	"quartet/pkg/journal/framelog"
	"quartet/services/storage/datadir"
)

// Settings say in which bucket the archives are, if they are in one.
type Settings struct {
	// URL is as ParseLocation takes it; empty: there is no bucket.
	URL             string
	CredentialsFile string
	CAFile          string
}

// Flags declares the settings.
func (s *Settings) Flags(set *conf.Set) {
	set.String(&s.URL, "archive", "", "Bucket of an S3 server for closed segments of journals, as "+LocationExample+
		"; without endpoint it is one of Amazon S3; empty: the directory archive of data-dir, or with nats-url streams")
	set.String(&s.CredentialsFile, "archive-credentials-file", "", "File with access_key_id and secret_access_key "+
		"for the bucket, mode 0600 or 0440, read again when it changes; empty: AWS_ACCESS_KEY_ID and "+
		"AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, or the role of the machine or pod")
	set.String(&s.CAFile, "archive-ca-file", "", "Certificates of the authorities that sign the S3 server's "+
		"certificate (PEM); empty: the system's authorities")
}

// Names are the names of the settings.
var Names = []string{"archive", "archive-credentials-file", "archive-ca-file"}

// Open returns the bucket, nil if there is none. It sends no request.
func (s Settings) Open() (*Bucket, error) {
	if s.URL == "" {
		if s.CredentialsFile != "" || s.CAFile != "" {
			return nil,
				errors.New("archive-credentials-file and archive-ca-file need archive, the bucket that they are for")
		}
		return nil, nil
	}
	location, err := ParseLocation(s.URL)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	bucket, err := OpenBucket(BucketConfig{
		Location: location, CredentialsFile: s.CredentialsFile, CAFile: s.CAFile,
		Now: clock.System().Now,
	})
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	return bucket, nil
}

// Places are where the archives of an installation are.
type Places struct {
	DataDir string
	// Remote says that the journals are on NATS servers; Replicas is how many copies of each these keep.
	Remote   bool
	Replicas int
	Bucket   *Bucket // nil: none
}

// Stores returns the stores of the partitions; nc is needed only if Remote.
func (p Places) Stores(nc *nats.Conn) func(plane string, partition int) (archive.Store, error) {
	return func(plane string, partition int) (archive.Store, error) {
		if p.Bucket != nil {
			return p.Bucket.Store(plane, partition), nil
		}
		return p.own(nc, plane, partition)
	}
}

// own returns the store of a partition without a bucket.
func (p Places) own(nc *nats.Conn, plane string, partition int) (archive.Store, error) {
	if p.Remote {
		return streamstore.New(nc, plane, partition, p.Replicas)
	}
	return archive.NewDirectory(datadir.Archive(p.DataDir), plane, partition), nil
}

// Archived returns the archives for those who look for damage; the zero Place if they are in streams.
func (p Places) Archived() Place {
	switch {
	case p.Bucket != nil:
		return Place{Bucket: p.Bucket, Mends: !p.Remote}
	case p.Remote:
		return Place{}
	}
	return Place{Dir: datadir.Archive(p.DataDir)}
}

// startTerm is how long a start waits for the bucket's mark, which says to which installation it belongs. If it does
// not come, the first use of the bucket reads it.
const startTerm = 3 * time.Second

// markFile is a file beside the archives of a data directory. It names the bucket that has the archives.
func markFile(dataDir string) string { return filepath.Join(datadir.Archive(dataDir), "bucket") }

// Begin returns an error if there are archives at another place than the settings say, since this process would not
// find what is archived there, or if the bucket belongs to another installation. With a bucket, it writes the
// bucket's name to markFile. That the bucket cannot be reached is no error.
func (p Places) Begin(ctx context.Context, nc *nats.Conn, planes []string, partitions func(plane string) int) error {
	if p.Bucket == nil {
		was, err := os.ReadFile(markFile(p.DataDir))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("the archives of this installation are in %s; give the settings archive and "+
			"archive-credentials-file that it had. To take them out of the bucket, make a backup and restore it "+
			"without these settings", strings.TrimSpace(string(was)))
	}
	for _, plane := range planes {
		for i := range partitions(plane) {
			store, err := p.own(nc, plane, i)
			if err != nil {
				return err
			}
			_, version, err := store.Catalog(ctx)
			if err != nil {
				return err
			}
			if version > 0 {
				return fmt.Errorf("the archive of %s is not in %s, as the setting archive says, but %s; remove the "+
					"setting. To put it into the bucket, make a backup and restore it with the setting, where there "+
					"is neither a journal nor an archive", framelog.PartitionName(plane, i), p.Bucket.Location(),
					p.where(plane, i))
			}
		}
	}
	asked, cancel := context.WithTimeout(ctx, startTerm)
	defer cancel()
	if err := p.Bucket.Owned(asked); errors.Is(err, ErrForeign) {
		return err
	}
	if err := os.MkdirAll(datadir.Archive(p.DataDir), 0o700); err != nil {
		return err
	}
	where := []byte(p.Bucket.Location().String() + "\n")
	if was, err := os.ReadFile(markFile(p.DataDir)); err == nil && bytes.Equal(was, where) {
		return nil
	}
	if err := os.WriteFile(markFile(p.DataDir), where, 0o600); err != nil {
		return err
	}
	return datadir.Sync(p.DataDir)
}

// where says where an archive is that is in no bucket.
func (p Places) where(plane string, partition int) string {
	if p.Remote {
		return "in the stream " + streamstore.Stream(plane, partition)
	}
	return "in " + archive.NewDirectory(datadir.Archive(p.DataDir), plane, partition).Dir()
}
