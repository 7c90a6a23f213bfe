package app

import (
	"os"
	"path/filepath"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"quartet/pkg/archive"
	"quartet/pkg/must"
)

// A restore can be repeated wherever it was interrupted while its directories were put into
// place, and a directory that a server has used since is not touched.
func TestAnInterruptedRestoreCanBeRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		there []string // directories with a file when the restore was interrupted
		undo  []string // directories that undo leaves
		full  bool     // the directory has an installation
	}{
		"before": {
			[]string{"nats.restoring", "home.restoring"},
			[]string{"nats.restoring", "home.restoring"},
			false,
		},
		"journals finished": {
			[]string{"nats.restored", "home.restoring"},
			[]string{"nats.restoring", "home.restoring"},
			false,
		},
		"homes in place": {
			[]string{"nats.restored", "home"},
			[]string{"nats.restoring", "home.restoring"},
			false,
		},
		"after": {[]string{"nats", "home"}, []string{"nats", "home"}, true},
		"a server was started": {
			[]string{"nats", "nats.restored", "home"},
			[]string{"nats", "nats.restored", "home"},
			true,
		},
		"somebody's homes": {[]string{"nats.restoring", "home"}, []string{"nats.restoring", "home"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := defaults(t)
			require.NoError(t, cfg.Complete())
			for _, dir := range c.there {
				require.NoError(t, os.MkdirAll(filepath.Join(cfg.DataDir, dir), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(cfg.DataDir, dir, "file"), nil, 0o600))
			}
			require.NoError(t, undo(cfg))
			for _, dir := range c.undo {
				require.FileExists(t, filepath.Join(cfg.DataDir, dir, "file"))
			}
			require.Len(t, must.Value(os.ReadDir(cfg.DataDir))(t), len(c.undo))
			err := checkTarget(cfg, archive.Manifest{})
			if c.full {
				require.ErrorContains(t, err, "contains an installation already")
				return
			}
			require.NoError(t, err)
			require.NoError(t, place(filepath.Join(cfg.DataDir, "nats"), cfg.HomeDir))
			for _, dir := range []string{"nats", "home"} {
				require.FileExists(t, filepath.Join(cfg.DataDir, dir, "file"))
			}
		})
	}
}

// A file with identities that others may read is refused with what to do about it; a pipe of a shell has no mode to
// speak of.
func TestIdentityFilesOfOthersAreRefused(t *testing.T) {
	identity := must.Value(age.GenerateX25519Identity())(t)
	path := filepath.Join(t.TempDir(), "identity")
	require.NoError(t, os.WriteFile(path, []byte(identity.String()+"\n"), 0o600))
	cfg := defaults(t)
	require.NoError(t, cfg.Complete())
	for mode, refused := range map[os.FileMode]bool{
		0o600: false, 0o400: false, 0o640: true, 0o604: true, 0o620: true,
		0o644: true,
	} {
		require.NoError(t, os.Chmod(path, mode))
		keys, err := Backup{IdentityFile: path}.keys(cfg)
		if !refused {
			require.NoError(t, err, mode)
			require.Len(t, keys.Identities, 1)
			continue
		}
		require.ErrorContains(t, err, "chmod 600 "+path, mode)
		require.ErrorContains(t, err, "0600 or stricter")
		require.Empty(t, keys.Identities)
	}
}
