package keyfile

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

var now = time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)

// grown returns a ring with one old, one active and one pending key.
func grown(t require.TestingT) Ring {
	r := must.Value(New(now).Add(now))(t)
	next, _ := r.Pending()
	r = must.Value(r.Activate(next.ID))(t)
	r = must.Value(r.Add(now.Add(time.Hour)))(t)
	return r
}

func TestI20_AFileIsReadAsItWasWritten(t *testing.T) {
	for _, r := range []Ring{New(now), grown(t), Of(bytes.Repeat([]byte{7}, 32))} {
		require.Equal(t, r, must.Value(Parse(r.format()))(t))
	}
	r := grown(t)
	require.Equal(t, []State{Old, Active, Pending}, []State{r.Keys()[0].State, r.Keys()[1].State, r.Keys()[2].State})
	for _, k := range r.Keys() {
		found, ok := r.Find(k.ID)
		require.True(t, ok)
		require.Equal(t, k, found)
		require.Regexp(t, `^[0-9a-f]{8}$`, k.ID)
		require.NotContains(t, hex.EncodeToString(k.Secret), k.ID, "an id tells nothing of its key")
	}
	_, ok := r.Find("")
	require.False(t, ok, "each key of a new file has a name")
}

// A file of one line of hex digits, the older format, is a ring of one key, and that is the key
// of records that name none.
func TestI20_TheOlderFormat(t *testing.T) {
	secret := bytes.Repeat([]byte{1, 2}, 16)
	r := must.Value(Parse([]byte(hex.EncodeToString(secret) + "\n")))(t)
	require.Equal(t, secret, r.Active().Secret)
	k, ok := r.Find("")
	require.True(t, ok)
	require.Equal(t, r.Active(), k)
	r = must.Value(r.Add(now))(t)
	next, _ := r.Pending()
	r = must.Value(r.Activate(next.ID))(t)
	r = must.Value(Parse(r.format()))(t)
	k, ok = r.Find("")
	require.True(t, ok, "after a rotation it is still the one")
	require.Equal(t, secret, k.Secret)
	r = must.Value(r.Retire(k.ID))(t)
	_, ok = r.Find("")
	require.False(t, ok, "and no other key takes its place")
}

// Each changed, missing or added part of a file is refused, and no error repeats a secret.
func TestI20_WrongFilesAreRefused(t *testing.T) {
	good := string(grown(t).format())
	lines := strings.SplitAfter(good, "\n")
	one := lines[1]
	for name, bad := range map[string]string{
		"empty": "", "a word": "hello\n", "short hex": strings.Repeat("a", 63),
		"hex and more": strings.Repeat("a", 64) + " x",
		"long hex":     strings.Repeat("a", 2*maxSecret+2), "too large": strings.Repeat(good, 100),
		"no keys": header + "0\n", "a count of 17": strings.Replace(good, header+"3", header+"17", 1),
		"a word as count": strings.Replace(good, header+"3", header+"x", 1),
		"one line less":   lines[0] + lines[1] + lines[2], "one line more": good + one, "a key twice": lines[0] + one +
			one + lines[2],
		"two active": strings.Replace(good, " old", " active", 1), "no active": strings.Replace(good, " active", " old",
			1), "two pending": strings.Replace(good, " old", " pending", 1),
		"a state": strings.Replace(good, " old", " odd", 1), "a time": strings.Replace(good, "2026-05-06", "2026-15-06",
			1),
		"another id": strings.Replace(good, one[:8], "00000000", 1), "a word more": strings.Replace(good, " old",
			" old x", 1),
		"two unnamed": strings.NewReplacer(" old", " old unnamed", " active", " active unnamed").Replace(good),
		"a blank":     strings.Replace(good, " old", "  old", 1),
	} {
		_, err := Parse([]byte(bad))
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), one[9:40], name)
	}
	for n := range good {
		require.Error(t, must.Err(Parse([]byte(good[:n]))), "the first %d bytes", n)
	}
	for at := len(lines[0]); at < len(lines[0])+9+64; at++ {
		changed := []byte(good)
		changed[at] ^= 1
		require.Error(t, must.Err(Parse(changed)), "byte %d", at)
	}
}

func TestI20_TheNumberOfKeysIsLimited(t *testing.T) {
	r := New(now)
	for range MaxKeys - 1 {
		var err error
		r = must.Value(r.Add(now))(t)
		_, err = r.Add(now)
		require.ErrorContains(t, err, "pending already")
		next, _ := r.Pending()
		r = must.Value(r.Activate(next.ID))(t)
	}
	must.Value(Parse(r.format()))(t, "%d keys", MaxKeys)
	require.LessOrEqual(t, len(r.format()), MaxFile)
	_, err := r.Add(now)
	require.ErrorContains(t, err, "retire one first")
}

func TestI20_WhichKeysCanBeRetired(t *testing.T) {
	r := grown(t)
	_, err := r.Retire(r.Active().ID)
	require.ErrorContains(t, err, "is the active one")
	for _, id := range []string{"", "00000000"} {
		_, err = r.Retire(id)
		require.ErrorContains(t, err, "no key")
		_, err = r.Activate(id)
		require.ErrorContains(t, err, "no key")
	}
	next, _ := r.Pending()
	require.Len(t, must.Value(r.Retire(next.ID))(t).Keys(), 2)
	require.Len(t, r.Keys(), 3, "a ring is a value")
}

func TestDerive(t *testing.T) {
	k, other := New(now).Active(), New(now).Active()
	first, second := k.Derive("a"), k.Derive("a")
	require.Equal(t, first, second)
	require.Len(t, k.Derive("a"), 32)
	require.NotEqual(t, k.Derive("a"), k.Derive("b"))
	require.NotEqual(t, k.Derive("a"), other.Derive("a"))
}

func TestI20_AFileIsCreatedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "key")
	rings := make([]Ring, 8)
	var wg sync.WaitGroup
	for i := range rings {
		wg.Go(func() {
			var err error
			rings[i], err = LoadOrCreate(path, now)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, r := range rings {
		require.Equal(t, rings[0], r)
	}
	require.Equal(t, os.FileMode(0o600), must.Value(os.Stat(path))(t).Mode().Perm())
	require.Len(t, must.Value(os.ReadDir(filepath.Dir(path)))(t), 1, "nothing else stays")
}

func TestI20_UpdatesAreAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	secret := strings.Repeat("ab", 32)
	require.NoError(t, os.WriteFile(path, []byte(secret+"\n"), 0o600))
	require.NoError(t, os.Chmod(path, 0o640))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("key", link))
	add := func(r Ring) (Ring, error) { return r.Add(now) }

	r := must.Value(Update(link, add))(t)
	require.Len(t, r.Keys(), 2)
	require.Equal(t, r, must.Value(Load(path))(t))
	info := must.Value(os.Lstat(link))(t)
	require.NotZero(t, info.Mode()&os.ModeSymlink, "the link is still one")
	info = must.Value(os.Stat(path))(t)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm(), "the mode is kept")

	if os.Geteuid() == 0 { // a superuser that changes the file leaves it to the servers' user
		require.NoError(t, os.Chown(path, 65532, 65532))
		must.Value(Update(path, func(r Ring) (Ring, error) { k, _ := r.Pending(); return r.Activate(k.ID) }))(t)
		must.Value(Update(path, add))(t)
		info = must.Value(os.Stat(path))(t)
		owner, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok)
		require.EqualValues(t, 65532, owner.Uid)
	}
	before := must.Value(os.ReadFile(path))(t)
	refusal := errors.New("no")
	_, err := Update(path, func(r Ring) (Ring, error) { return r, refusal })
	require.ErrorIs(t, err, refusal)
	_, err = Update(path, add)
	require.ErrorContains(t, err, "pending already")
	_, err = Update(filepath.Join(dir, "none"), add)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Update(path, func(r Ring) (Ring, error) {
		// Two commands at once: the second one is refused.
		_, err := Update(path, func(r Ring) (Ring, error) { return r, nil })
		require.ErrorContains(t, err, "another process changes the key file")
		return r, refusal
	})
	require.ErrorIs(t, err, refusal)
	require.Equal(t, string(before), string(must.Value(os.ReadFile(path))(t)))
	require.Len(t, must.Value(os.ReadDir(dir))(t), 2, "no temporary file stays")
}

func TestI20_AProcessFollowsItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	s, err := Open(path, now)
	require.NoError(t, err)
	first := s.Ring()
	var seen atomic.Int32
	s.OnChange(func() { seen.Add(1) })
	changed := must.Value(s.Poll())(t)
	require.False(t, changed)

	next := must.Value(Update(path, func(r Ring) (Ring, error) { return r.Add(now) }))(t)
	changed = must.Value(s.Poll())(t)
	require.True(t, changed)
	require.Equal(t, next, s.Ring())
	require.EqualValues(t, 1, seen.Load())

	whole := must.Value(os.ReadFile(path))(t)
	for name, bad := range map[string][]byte{
		"half": whole[:len(whole)/2], "empty": nil,
		"of another installation": New(now).format(),
	} {
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		changed, err = s.Poll()
		require.Error(t, err, name)
		require.False(t, changed, name)
		require.Equal(t, next, s.Ring(), name)
	}
	require.NoError(t, os.Remove(path))
	_, err = s.Poll()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	changed = must.Value(s.Poll())(t)
	require.False(t, changed, "it is as it was")
	require.EqualValues(t, 1, seen.Load())
	require.NotEqual(t, first, s.Ring())

	require.Error(t, must.Err(Open(filepath.Join(path, "below"), now)))
}

func FuzzParse(f *testing.F) {
	f.Add(grown(f).format())
	f.Add([]byte(strings.Repeat("ab", 32) + "\n"))
	f.Add(fmt.Appendf(nil, "%s1\n", header))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := Parse(raw)
		if err != nil {
			return
		}
		require.Equal(t, r, must.Value(Parse(r.format()))(t))
	})
}
