package archives

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/framelog"
	"quartet/services/storage/datadir"
)

// startTerm is how long a start waits for the bucket's mark, which says to which installation it belongs. If it does
// not come, the first use of the bucket reads it.
const startTerm = 3 * time.Second

// markFile is a file beside the archives of a data directory. It names the bucket or directory of the setting archive.
func markFile(dataDir string) string { return filepath.Join(datadir.Archive(dataDir), "bucket") }

// Installation is what Begin needs to know of an installation.
type Installation struct {
	Conn       *nats.Conn // nil unless Places.Remote
	Planes     []string
	Partitions func(plane string) int
	// Keys returns the ids of its keys; nil: it is not compared whose archives they are.
	Keys   func() []string
	Logger *zap.Logger
}

// Begin returns an error if there are archives at another place than the settings say, since this process would not
// find what is archived there, or if they belong to another installation. Archives in streams, as earlier versions
// wrote them, it moves to the place that the settings say. That a bucket cannot be reached is no error.
func (p Places) Begin(ctx context.Context, in Installation) error {
	// What does this data directory know of its archives?
	raw, err := os.ReadFile(markFile(p.DataDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	before, named := strings.TrimSpace(string(raw)), p.Dir
	if p.Bucket != nil {
		named = p.Bucket.Location().String()
	}
	if before != "" && (named == "" || strings.HasPrefix(before, "s3://") != (p.Bucket != nil)) {
		return fmt.Errorf("the archives of this installation are in %s; give the settings archive and "+
			"archive-credentials-file that it had. To take them out of there, make a backup and restore it with the "+
			"settings that you want, where there is neither a journal nor an archive", before)
	}
	if named != "" {
		if err := p.unnamed(ctx, in, named); err != nil {
			return err
		}
	}

	// Whose are those at the named place?
	switch {
	case p.Bucket != nil:
		asked, cancel := context.WithTimeout(ctx, startTerm)
		defer cancel()
		if err := p.Bucket.Owned(asked); errors.Is(err, ErrForeign) {
			return err
		}
	case p.Dir != "":
		if err := CheckDirectory(p.Dir); err != nil {
			return err
		}
		if err := ownDirectory(p.Dir, before == p.Dir, in.Keys); err != nil {
			return err
		}
	}
	if p.Remote {
		if err := p.beginRemote(ctx, in); err != nil {
			return err
		}
	}
	if before == named {
		return nil
	}
	if err := os.MkdirAll(datadir.Archive(p.DataDir), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(markFile(p.DataDir), []byte(named+"\n"), 0o600); err != nil {
		return err
	}
	return datadir.Sync(p.DataDir)
}

// unnamed returns an error if there are archives in the data directory although the setting names another place.
func (p Places) unnamed(ctx context.Context, in Installation, named string) error {
	for _, plane := range in.Planes {
		for i := range in.Partitions(plane) {
			store := archive.NewDirectory(datadir.Archive(p.DataDir), plane, i)
			if store.Dir() == filepath.Join(p.Dir, filepath.Base(store.Dir())) {
				continue // the setting names that directory
			}
			_, version, err := store.Catalog(ctx)
			if err != nil {
				return err
			}
			if version > 0 {
				return fmt.Errorf("the archive of %s is not in %s, as the setting archive says, but in %s; remove the "+
					"setting. To move it there, make a backup and restore it with the setting, where there is "+
					"neither a journal nor an archive", framelog.PartitionName(plane, i), named, store.Dir())
			}
		}
	}
	return nil
}

// CheckDirectory returns an error unless a file can be created in a directory, and linked under another name there but
// not under one that exists: that decides which of two processes writes a catalog.
func CheckDirectory(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("it is no directory")
	}
	if err != nil {
		return fmt.Errorf("archive: %w; create the directory, and let every process of the installation read and "+
			"write it", err)
	}
	f, err := os.CreateTemp(dir, "check-")
	if err != nil {
		return fmt.Errorf("archive: %w; let every process of the installation read and write the directory", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	linked := f.Name() + "-linked"
	err = errors.Join(f.Close(), os.Link(f.Name(), linked))
	defer func() { _ = os.Remove(linked) }()
	if err == nil && !errors.Is(os.Link(f.Name(), linked), fs.ErrExist) {
		err = errors.New("a hard link replaces a file that exists")
	}
	if err != nil {
		return fmt.Errorf("archive: %s: %w; choose a file system with POSIX hard links", dir, err)
	}
	return nil
}

// ownDirectory returns ErrForeign if a directory belongs to another installation, and takes it if it belongs to none.
// used says that this installation has used it before. keys returns the ids of its keys.
func ownDirectory(dir string, used bool, keys func() []string) error {
	if keys == nil {
		return nil
	}
	ids := slices.Sorted(slices.Values(keys()))
	file := filepath.Join(dir, markName)
	raw, err := os.ReadFile(file)
	there := strings.Fields(string(raw))
	known := func(id string) bool { return slices.Contains(there, id) }
	switch {
	case errors.Is(err, fs.ErrNotExist) && used:
		return fmt.Errorf("the archives of this installation are in %s, and it has no file %s: see whether the volume "+
			"is mounted", dir, markName)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("archive: %w", err)
	case err == nil && !slices.ContainsFunc(ids, known):
		return fmt.Errorf("archive: %w: %s names none of the keys of this one; give each installation a directory of "+
			"its own", ErrForeign, file)
	case err == nil && !slices.ContainsFunc(ids, func(id string) bool { return !known(id) }):
		return nil
	}

	// Take it, or add the keys that are new.
	temp := file + "-" + unique()
	defer func() { _ = os.Remove(temp) }()
	if err := os.WriteFile(temp, []byte(strings.Join(ids, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if err == nil {
		err = os.Rename(temp, file)
	} else if err = os.Link(temp, file); errors.Is(err, fs.ErrExist) {
		return ownDirectory(dir, true, keys) // another process was faster
	}
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return datadir.Sync(dir)
}
