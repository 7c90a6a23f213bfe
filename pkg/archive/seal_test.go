package archive_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"quartet/pkg/archive"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
)

func newRing() keyfile.Ring { return keyfile.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) }

// rotated returns the ring with a new active key, and with the previous one as an old key.
func rotated(t testing.TB, r keyfile.Ring) keyfile.Ring {
	r = must.Value(r.Add(time.Now()))(t)
	next, _ := r.Pending()
	r = must.Value(r.Activate(next.ID))(t)
	return r
}

func sealed(t testing.TB, r keyfile.Ring, plain []byte, recipients ...age.Recipient) []byte {
	var b bytes.Buffer
	s := must.Value(archive.Seal(&b, r.Active(), recipients))(t)
	must.Value(s.Write(plain))(t)
	require.NoError(t, s.Close())
	return b.Bytes()
}

// opened opens and reads a file, and reports how many entries a visitor saw.
func opened(raw []byte, keys archive.Keys) (content, error) {
	c := content{files: map[string]string{}}
	f, err := archive.Open(bytes.NewReader(raw), keys)
	if err != nil {
		return c, err
	}
	_, _, err = f.Read(archive.Visitor{
		Message: func(m archive.Message) error { c.messages = append(c.messages, m); return nil },
		File: func(path string, _, _ int64, body io.Reader) error {
			text, err := io.ReadAll(body)
			c.files[path] = string(text)
			return err
		},
	})
	return c, err
}

func identity(t testing.TB) *age.X25519Identity {
	return must.Value(age.GenerateX25519Identity())(t)
}

// A backup is read with the key that made it, also after that key was rotated, and shows nothing
// without it.
func TestI21_ASealedArchiveIsRead(t *testing.T) {
	plain := write(t, manifest("a", "b"), sample())
	want, _, _, err := read(plain)
	require.NoError(t, err)
	r, mine := newRing(), identity(t)
	for name, c := range map[string]struct {
		raw  []byte
		keys archive.Keys
	}{
		"of the installation": {sealed(t, r, plain), archive.Keys{Ring: r}},
		"after a rotation":    {sealed(t, r, plain), archive.Keys{Ring: rotated(t, r)}},
		"of a recipient": {
			sealed(t, r, plain, mine.Recipient()),
			archive.Keys{Ring: r, Identities: []age.Identity{mine}},
		},
		"of several recipients": {
			sealed(t, r, plain, identity(t).Recipient(), mine.Recipient()),
			archive.Keys{Ring: r, Identities: []age.Identity{identity(t), mine}},
		},
		"without the key": {sealed(t, r, plain, mine.Recipient()), archive.Keys{
			Identities:      []age.Identity{mine},
			Unauthenticated: true,
		}},
		"of the older format": {plain, archive.Keys{Ring: r, Unauthenticated: true}},
	} {
		got := must.Value(opened(c.raw, c.keys))(t, name)
		require.Equal(t, want, got, name)
		f := must.Value(archive.Open(bytes.NewReader(c.raw), c.keys))(t)
		require.Equal(t, !c.keys.Unauthenticated, f.Authenticated(), name)
		if name != "of the older format" {
			require.NotContains(t, string(c.raw), "keeper", name)
		}
	}
	first, second := sealed(t, r, plain), sealed(t, r, plain)
	require.NotEqual(t, first, second)
}

// Each refusal has its own error, and nothing of the file is interpreted before.
func TestI21_WhatIsRefused(t *testing.T) {
	plain := write(t, manifest("a", "b"), sample())
	r, foreign, mine := newRing(), newRing(), identity(t)
	retired := must.Value(rotated(t, r).Retire(r.Active().ID))(t)
	good, theirs := sealed(t, r, plain), sealed(t, r, plain, mine.Recipient())
	// forge is what somebody makes who has a key of his own and names ours.
	forge := func(recipients ...age.Recipient) []byte {
		return bytes.Replace(sealed(t, foreign, plain, recipients...), []byte(foreign.Active().ID),
			[]byte(r.Active().ID), 1)
	}
	ours := archive.Keys{Ring: r, Identities: []age.Identity{mine}}
	for name, c := range map[string]struct {
		raw  []byte
		keys archive.Keys
		want error
		says string
	}{
		"another installation's": {sealed(t, foreign, plain), ours, archive.ErrKey, foreign.Active().ID},
		"a retired key's":        {good, archive.Keys{Ring: retired}, archive.ErrKey, r.Active().ID},
		"no key at all":          {good, archive.Keys{}, archive.ErrKey, "has none"},
		"its key is needed":      {good, archive.Keys{Unauthenticated: true}, archive.ErrKey, r.Active().ID},
		"no identity":            {theirs, archive.Keys{Ring: r}, archive.ErrIdentity, "identity"},
		"another identity": {
			theirs,
			archive.Keys{Ring: r, Identities: []age.Identity{identity(t)}},
			archive.ErrIdentity, "other recipients",
		},
		"forged": {forge(), ours, archive.ErrUnauthenticated, "nothing in it can be trusted"},
		"forged for our recipient": {
			forge(mine.Recipient()), ours, archive.ErrUnauthenticated,
			"nothing in it can be trusted",
		},
		"forged, and that accepted": {forge(mine.Recipient()), archive.Keys{
			Ring: r, Identities: []age.Identity{mine}, Unauthenticated: true,
		}, archive.ErrUnauthenticated, "nothing in it can be trusted"},
		"our tag, another content": {
			slicesConcat(forge(mine.Recipient()), theirs), ours, archive.ErrUnauthenticated,
			"",
		},
		"of the older format": {plain, ours, archive.ErrUnauthenticated, "did not authenticate"},
		"empty":               {nil, ours, archive.ErrForeign, ""},
		"a text":              {[]byte(strings.Repeat("hello\n", 100)), ours, archive.ErrForeign, ""},
		"of a later format": {
			bytes.Replace(good, []byte("backup 2 "), []byte("backup 3 "), 1), ours,
			archive.ErrForeign, "",
		},
		"for somebody else": {
			bytes.Replace(good, []byte(" installation\n"), []byte(" installatiox\n"), 1),
			ours, archive.ErrForeign, "",
		},
	} {
		got, err := opened(c.raw, c.keys)
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.says, name)
		require.Empty(t, got.messages, name)
		require.Empty(t, got.files, name)
	}
}

// slicesConcat returns the first file with the tag and the ending of the second one.
func slicesConcat(body, end []byte) []byte {
	const trailer = 32 + len("quartet-backup-end\n")
	return append(bytes.Clone(body[:len(body)-trailer]), end[len(end)-trailer:]...)
}

// Each changed byte is found before anything is read, and a cut file is called one.
func TestI21_EachChangedByteIsFound(t *testing.T) {
	plain := write(t, manifest("a", "b"), sample())
	r, mine := newRing(), identity(t)
	for name, good := range map[string][]byte{
		"of the installation": sealed(t, r, plain),
		"of a recipient":      sealed(t, r, plain, mine.Recipient()),
	} {
		keys := archive.Keys{Ring: r, Identities: []age.Identity{mine}}
		for n := range good {
			got, err := opened(good[:n], keys)
			require.Error(t, err, "%s, cut at %d", name, n)
			require.Truef(t, errors.Is(err, archive.ErrCut) || n == 0 && errors.Is(err, archive.ErrForeign),
				"%s, cut at %d: %v", name, n, err)
			require.Empty(t, got.messages)
			changed := bytes.Clone(good)
			changed[n] ^= 0x01
			got, err = opened(changed, keys)
			require.Error(t, err, "%s, changed at %d", name, n)
			require.Empty(t, got.messages, "%s, changed at %d", name, n)
		}
		must.Refuse(opened(append(bytes.Clone(good), 'x'), keys))(t, archive.ErrCut, "something follows its end")
	}
}

// The error of a changed file says where.
func TestI21_WhereItWasChanged(t *testing.T) {
	r := newRing()
	good := sealed(t, r, bytes.Repeat([]byte("0123456789abcdef"), 1<<16)) // 1 MiB
	changed := bytes.Clone(good)
	changed[500_000] ^= 1
	_, err := opened(changed, archive.Keys{Ring: r})
	require.ErrorIs(t, err, archive.ErrDamaged)
	require.Regexp(t, `byte 5[0-9]{5} of 10[0-9]{5}`, err.Error())
}

// A file that is exchanged after it was checked is found before a restore is complete.
func TestI21_ChangedWhileItIsRead(t *testing.T) {
	r, mine := newRing(), identity(t)
	plain := write(t, manifest("a", "b"), sample())
	good := sealed(t, r, plain, mine.Recipient())
	keys := archive.Keys{Ring: r, Identities: []age.Identity{mine}}
	forged := write(t, manifest("a", "b"), content{files: map[string]string{"x": strings.Repeat("y", 300)}})
	other := sealed(t, r, forged, mine.Recipient())
	file := &exchanged{Reader: bytes.NewReader(good)}
	f := must.Value(archive.Open(file, keys))(t)
	_, _, err := f.Read(archive.Visitor{})
	require.NoError(t, err)
	file.Reader = bytes.NewReader(other)
	_, _, err = f.Read(archive.Visitor{})
	require.Error(t, err)
}

type exchanged struct{ *bytes.Reader }

func TestI21_Recipients(t *testing.T) {
	text := identity(t).Recipient().String()
	all := make([]string, archive.MaxRecipients)
	for i := range all {
		all[i] = text
	}
	r := must.Value(archive.ParseRecipients(all))(t)
	require.Len(t, r, archive.MaxRecipients)
	_, err := archive.ParseRecipients(slices.Concat(all, []string{text}))
	require.ErrorContains(t, err, "at most 20")
	for _, bad := range []string{"", "age1", text + "x", text + "\n" + text, "ssh-ed25519 AAAA"} {
		_, err = archive.ParseRecipients([]string{bad})
		require.Error(t, err, bad)
	}
	raw := sealed(t, newRing(), []byte("x"), r...)
	require.Less(t, len(raw), 1<<15)
}

func FuzzOpen(f *testing.F) {
	r, mine := newRing(), identity(f)
	plain := write(f, manifest("a"), content{})
	f.Add(sealed(f, r, plain))
	f.Add(sealed(f, r, plain, mine.Recipient()))
	f.Add(plain)
	keys := archive.Keys{Ring: r, Identities: []age.Identity{mine}}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := opened(raw, keys)
		if err != nil {
			require.Empty(t, got.messages)
		}
	})
}
