package tests

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"quartet/pkg/archive"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	"quartet/tests/proc"
)

// TestI21_ForgedBackups: somebody who can write where backups are, and knows everything but the
// installation's key, makes himself an admin in a backup. Every such file is refused by name,
// and nothing is restored; as is a file that was changed, cut short, or needs another key.
func TestI21_ForgedBackups(t *testing.T) {
	t.Parallel() // most of it is waiting
	bin, dir := binary(t), t.TempDir()
	data := filepath.Join(dir, "data")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	srv := startServer(t, ctx, data)
	quartet := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, bin, append(args, "--address", srv.GRPC)...).CombinedOutput()
		return string(out), err
	}
	succeed := func(args ...string) string {
		t.Helper()
		out, err := quartet(args...)
		require.NoError(t, err, out)
		return out
	}
	secret := regexp.MustCompile(`qk_\S+`).FindString(succeed("key", "create", "root", "--role", "admin"))
	succeed("agent", "spawn", "keeper")
	operator := must.Value(age.GenerateX25519Identity())(t)
	identities := filepath.Join(dir, "identity")
	require.NoError(t, os.WriteFile(identities, []byte(operator.String()+"\n"), 0o600))
	file, theirs := filepath.Join(dir, "all.backup"), filepath.Join(dir, "theirs.backup")
	succeed("backup", file)
	succeed("backup", theirs, "--recipient", operator.Recipient().String())
	out, err := quartet("backup", filepath.Join(dir, "none"), "--recipient", "age1x")
	require.Error(t, err)
	require.Contains(t, out, "not a recipient of age")
	require.NoFileExists(t, filepath.Join(dir, "none"))

	// The installation rotates its key between backup and restore.
	key := filepath.Join(data, "key")
	succeed("installation-key", "rotate", "--key-file", key)
	ring := must.Value(keyfile.Load(key))(t)
	succeed("agent", "spawn", "later")
	after := filepath.Join(dir, "after.backup")
	succeed("backup", after)
	require.NoError(t, srv.Kill())

	genuine := must.Value(os.ReadFile(file))(t)
	for _, word := range []string{"keeper", "root", "quartet-journal"} {
		require.NotContains(t, string(genuine), word)
	}
	forged := forgeAdmin(t, genuine, archive.Keys{Ring: ring}, secret)
	invented := forged.secret
	foreign := keyfile.New(time.Now())
	named := func(seal []byte) []byte {
		return bytes.Replace(seal, []byte(foreign.Active().ID), []byte(ring.Keys()[0].ID), 1)
	}
	retired := must.Value(ring.Retire(ring.Keys()[0].ID))(t)
	changed := bytes.Clone(genuine)
	changed[len(changed)/2] ^= 1

	store := func(name string, raw []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, raw, 0o600))
		return path
	}
	keyOf := func(name string, r keyfile.Ring) string {
		path := filepath.Join(dir, name)
		must.Value(keyfile.LoadOrCreate(path, time.Now()))(t)
		must.Value(keyfile.Update(path, func(keyfile.Ring) (keyfile.Ring, error) { return r, nil }))(t)
		return path
	}
	both := []string{"--key-file", key, "--identity-file", identities}
	for name, c := range map[string]struct {
		file string
		args []string
		says string
	}{
		"a forged file of the older format": {store("a", forged.plain), both, "is not authenticated"},
		"a forged file of another key": {
			store("b", sealWith(t, foreign, forged.plain)), both,
			"needs another key",
		},
		"that claims to be ours": {
			store("c", named(sealWith(t, foreign, forged.plain))), both,
			"nothing in it can be trusted",
		},
		"for our recipient": {
			store("d", named(sealWith(t, foreign, forged.plain, operator.Recipient()))), both,
			"nothing in it can be trusted",
		},
		"and unauthenticated is asked for": {
			store("d", named(sealWith(t, foreign, forged.plain, operator.Recipient()))),
			append(both, "--unauthenticated"), "nothing in it can be trusted",
		},
		"a changed file":           {store("e", changed), both, "was changed at or shortly before byte"},
		"a file that is cut short": {store("f", genuine[:len(genuine)/2]), both, "cut short"},
		"no key file": {
			file,
			[]string{"--key-file", filepath.Join(dir, "nowhere")},
			"the key file has none",
		},
		"a key that was retired": {
			file,
			[]string{"--key-file", keyOf("retired", retired)},
			ring.Keys()[0].ID,
		},
		"no identity": {theirs, []string{"--key-file", key}, "encrypted for other recipients"},
		"not a file of identities": {
			theirs,
			[]string{"--key-file", key, "--identity-file", key},
			"AGE-SECRET-KEY",
		},
	} {
		fresh := filepath.Join(t.TempDir(), "fresh")
		out, err := quartet(append([]string{"restore", c.file, "--data-dir", fresh}, c.args...)...)
		require.Error(t, err, "%s: %s", name, out)
		require.Contains(t, out, c.says, name)
		require.NoDirExists(t, filepath.Join(fresh, "nats"), name)
		require.NoDirExists(t, filepath.Join(fresh, "nats.restoring"), name)
		require.NotContains(t, out, operator.String())
	}
	out, err = quartet(append([]string{"restore", "--check", store("c", named(sealWith(t, foreign, forged.plain)))},
		both...)...)
	require.Error(t, err)
	require.Contains(t, out, "nothing in it can be trusted")
	succeed(append([]string{"restore", "--check", file}, both...)...)

	// What is genuine is restored, with the ring of after the rotation, and what was refused
	// is what the refusals protect from.
	restored := func(file string, args ...string) *proc.Quartet {
		t.Helper()
		fresh := filepath.Join(t.TempDir(), "restored")
		require.NoError(t, os.Mkdir(fresh, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(fresh, "key"), must.Value(os.ReadFile(key))(t), 0o600))
		out, err := quartet(append([]string{"restore", file, "--data-dir", fresh}, args...)...)
		require.NoError(t, err, out)
		require.Equal(t, strings.Contains(out, "is not authenticated"), len(args) == 1)
		s := startServer(t, ctx, fresh)
		return s
	}
	who := func(s *proc.Quartet, token string) (string, error) {
		out, err := exec.CommandContext(ctx, bin, "whoami", "--address", s.GRPC, "--token", token).CombinedOutput()
		return string(out), err
	}
	for _, s := range []*proc.Quartet{
		restored(file), restored(theirs, "--identity-file", identities),
		restored(after),
	} {
		out, err := who(s, secret)
		require.NoError(t, err, out)
		require.Contains(t, out, "root, admin")
		require.Error(t, must.Err(who(s, invented)))
		require.NoError(t, s.Kill())
	}
	s := restored(store("a", forged.plain), "--unauthenticated")
	out, err = who(s, invented)
	require.Error(t, err, "the chain of frames tells, unless a forger computes it anew")
	require.Contains(t, out, "API keys cannot be checked: the journal of identity/0 is damaged")
}

// forgery is an archive with the key of an invented admin, not sealed.
type forgery struct {
	plain  []byte
	secret string
}

// forgeAdmin reads a genuine archive and replaces the hash of an admin's secret by that of another
// one, as whoever reads a backup in plain can do.
func forgeAdmin(t *testing.T, genuine []byte, keys archive.Keys, secret string) forgery {
	t.Helper()
	hash := func(secret string) string { sum := sha256.Sum256([]byte(secret)); return hex.EncodeToString(sum[:]) }
	invented := secret[:len(secret)-64] + strings.Repeat("ab", 32)
	f := must.Value(archive.Open(bytes.NewReader(genuine), keys))(t)
	m, _, err := f.Read(archive.Visitor{})
	require.NoError(t, err)
	var b bytes.Buffer
	w := must.Value(archive.NewWriter(&b, m))(t)
	replaced := 0
	_, _, err = f.Read(archive.Visitor{
		Message: func(m archive.Message) error {
			replaced += bytes.Count(m.Data, []byte(hash(secret)))
			m.Data = bytes.ReplaceAll(m.Data, []byte(hash(secret)), []byte(hash(invented)))
			return w.Message(m)
		},
		File: func(path string, mode, size int64, body io.Reader) error { return w.File(path, mode, size, body) },
	})
	require.NoError(t, err)
	require.Equal(t, 1, replaced)
	must.Value(w.Close())(t)
	return forgery{b.Bytes(), invented}
}

func sealWith(t *testing.T, r keyfile.Ring, plain []byte, recipients ...age.Recipient) []byte {
	t.Helper()
	var b bytes.Buffer
	s := must.Value(archive.Seal(&b, r.Active(), recipients))(t)
	must.Value(s.Write(plain))(t)
	require.NoError(t, s.Close())
	return b.Bytes()
}
