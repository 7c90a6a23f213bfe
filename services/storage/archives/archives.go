package archives

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"quartet/pkg/clock"
	"quartet/pkg/conf"
	"quartet/pkg/journal/archive"
	"quartet/services/storage/datadir"
)

// Settings say where the archives are, if not at the default place.
type Settings struct {
	// URL is a bucket as ParseLocation takes it, or the absolute path of a directory that all processes of the
	// installation share; empty: the directory archive of data-dir, or with nats-url none.
	URL             string
	CredentialsFile string
	CAFile          string
}

// Flags declares the settings.
func (s *Settings) Flags(set *conf.Set) {
	set.String(&s.URL, "archive", "", "Where closed segments of journals are kept: the absolute path of a directory, "+
		"which with nats-url all processes share, or a bucket of an S3 server, as "+LocationExample+
		"; without endpoint it is one of Amazon S3; empty: the directory archive of data-dir, or with nats-url none: "+
		"all segments stay in NATS")
	set.String(&s.CredentialsFile, "archive-credentials-file", "", "File with access_key_id and secret_access_key "+
		"for the bucket, mode 0600 or 0440, read again when it changes; empty: AWS_ACCESS_KEY_ID and "+
		"AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, or the role of the machine or pod")
	set.String(&s.CAFile, "archive-ca-file", "", "Certificates of the authorities that sign the S3 server's "+
		"certificate (PEM); empty: the system's authorities")
}

// Names are the names of the settings.
var Names = []string{"archive", "archive-credentials-file", "archive-ca-file"}

// Dir returns the directory that is named; "" if none is.
func (s Settings) Dir() string {
	if !filepath.IsAbs(s.URL) {
		return ""
	}
	return filepath.Clean(s.URL)
}

// Open returns the bucket, nil if none is named. It sends no request.
func (s Settings) Open() (*Bucket, error) {
	if s.URL == "" || s.Dir() != "" {
		if s.CredentialsFile != "" || s.CAFile != "" {
			return nil,
				errors.New("archive-credentials-file and archive-ca-file need archive, the bucket that they are for")
		}
		return nil, nil
	}
	location, err := ParseLocation(s.URL)
	if err != nil && !strings.HasPrefix(s.URL, "s3:") {
		return nil, fmt.Errorf("archive: %w, or the absolute path of a directory", err)
	}
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
	// Remote says that the journals are on NATS servers.
	Remote bool
	Bucket *Bucket // nil: none
	Dir    string  // of the setting archive; empty: none
}

// Kept reports whether closed segments are archived. Otherwise they stay in the journals.
func (p Places) Kept() bool { return p.Bucket != nil || p.Dir != "" || !p.Remote }

// Store returns the store of a partition. Unless Kept, it is empty, and nothing may be stored in it.
func (p Places) Store(plane string, partition int) (archive.Store, error) {
	switch {
	case p.Bucket != nil:
		return p.Bucket.Store(plane, partition), nil
	case p.Remote && p.Dir != "":
		return archive.NewSharedDirectory(p.Dir, plane, partition), nil
	}
	return archive.NewDirectory(p.dir(), plane, partition), nil
}

// dir returns the directory of the archives if they are in none of a bucket.
func (p Places) dir() string { return cmp.Or(p.Dir, datadir.Archive(p.DataDir)) }

// Archived returns the archives for those who look for damage; a Place without any if there are none.
func (p Places) Archived() Place {
	switch {
	case p.Bucket != nil:
		return Place{Bucket: p.Bucket, Remote: p.Remote}
	case !p.Kept():
		return Place{Remote: true}
	}
	return Place{Dir: p.dir(), Remote: p.Remote}
}
