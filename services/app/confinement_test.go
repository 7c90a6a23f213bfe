package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"quartet/pkg/certs"
	"quartet/pkg/must"
)

// Each file with a secret of the process is hidden from the commands of its worker, and is in no root unless its
// directory is hidden.
func TestT10_SecretsOfTheServerAreHidden(t *testing.T) {
	dir := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	root, data, keys := filepath.Join(dir, "root"), filepath.Join(dir, "root", "data"),
		filepath.Join(dir, "root", "keys")
	require.NoError(t, errors.Join(os.MkdirAll(data, 0o700), os.Mkdir(keys, 0o700)))
	cfg := Config{
		DataDir: data, KeyFile: filepath.Join(data, "key"), TLS: certs.Files{
			Cert: filepath.Join(root, "tls.pem"),
			Key:  filepath.Join(keys, "tls.key"),
		}, WorkerHidden: []string{keys},
		WorkerRoots: []string{root}, WorkerConfiner: []string{"x"}, SecretFiles: map[string]string{
			"config": filepath.Join(dir, "quartet.yaml"),
		},
	}
	cfg.NATS.PasswordFile = filepath.Join(dir, "password")
	s := must.Value(cfg.confinement())(t)
	require.Subset(t, s.Hidden, []string{
		data, keys, cfg.KeyFile, cfg.TLS.Key, cfg.NATS.PasswordFile,
		filepath.Join(dir, "quartet.yaml"),
	})
	for name, path := range map[string]*string{
		"key-file": &cfg.KeyFile, "tls-key-file": &cfg.TLS.Key,
		"nats-password-file": &cfg.NATS.PasswordFile, "archive-credentials-file": &cfg.Archive.CredentialsFile,
	} {
		before := *path
		*path = filepath.Join(root, "secret")
		must.Fail(cfg.confinement())(t, name+": "+*path)
		*path = before
	}
}

// Each file that a setting names is hidden from commands, but for certificates, which are public.
func TestEveryFileOfASettingIsHidden(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	cfg := Config{WorkerConfiner: []string{"x"}}
	cfg.Flags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		if !strings.HasSuffix(f.Name, "-file") || strings.HasSuffix(f.Name, "ca-file") ||
			strings.HasSuffix(f.Name, "cert-file") {
			return
		}
		path := filepath.Join(must.Value(filepath.EvalSymlinks(t.TempDir()))(t), f.Name)
		require.NoError(t, f.Value.Set(path))
		require.Contains(t, must.Value(cfg.confinement())(t).Hidden, path)
	})
}

// Without worker-roots, the home and directories around it are no root: a process with all services executes no
// commands there, and another one does not start.
func TestT10_TheHomeIsNoRootUnlessNamed(t *testing.T) {
	home := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	project, link := filepath.Join(home, "project"), filepath.Join(t.TempDir(), "link")
	require.NoError(t, errors.Join(os.Mkdir(project, 0o700), os.Symlink(home, link)))
	t.Setenv("HOME", home)
	for _, c := range []struct {
		dir   string
		roots []string
		root  bool
	}{
		{home, nil, false},
		{link, nil, false},
		{filepath.Dir(home), nil, false},
		{project, nil, true},
		{home, []string{home}, true},
		{home, []string{project}, true},
	} {
		t.Chdir(c.dir)
		cfg := Config{
			DataDir: t.TempDir(), GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", WorkerRoots: c.roots,
			WorkerConfiner: []string{"quartet"}, Serve: Services,
		}
		require.NoError(t, cfg.Complete())
		require.Equal(t, c.root, cfg.executes(), "%+v", c)
		for _, unconfined := range []bool{false, true} {
			cfg.EmbeddedWorker, cfg.WorkerUnconfined = EmbeddedOn, unconfined
			_, err := cfg.confinement()
			require.True(t, cfg.executes())
			if c.root {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "worker-roots: "+cfg.WorkerRoots[0]+" is the home of this user or contains it")
			}
		}
	}
}
