package keyfile

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxKeys is the largest number of keys in a file. A credential that names no key is
	// compared with all of them.
	MaxKeys = 16
	// MaxFile is the largest size of a file in bytes.
	MaxFile = 16 << 10

	minSecret = 32 // bytes
	maxSecret = 256
	idLength  = 8 // hex digits

	// header begins the first line of a file, and the number of keys ends it, so that a file
	// of which a part is missing is not accepted.
	header = "quartet-installation-keys 1 "
	// unnamed ends the line of the key for which Key.Unnamed is set.
	unnamed = "unnamed"
)

// State says what a key is used for. A key of any state verifies.
type State string

// The states of a key.
const (
	// Active is the state of the one key that signs and from which new secrets are derived.
	Active State = "active"
	// Pending is the state of a key that does not sign yet, because not all processes may
	// have it.
	Pending State = "pending"
	// Old is the state of a key that signed before.
	Old State = "old"
)

// Key is one key of an installation.
type Key struct {
	// ID names the key in credentials and records. It follows from Secret, and does not
	// reveal it.
	ID     string
	Secret []byte
	State  State
	// Created is zero for the key of a file of the older format.
	Created time.Time
	// Unnamed says that this is the key of credentials and records that name no key,
	// because they were made before keys had ids.
	Unnamed bool
}

// Derive returns 32 bytes that are derived from the key and a purpose. The bytes of one purpose reveal
// nothing about those of another, or about the key.
func (k Key) Derive(purpose string) []byte {
	out, err := hkdf.Key(sha256.New, k.Secret, nil, purpose, sha256.Size)
	if err != nil {
		panic("keyfile: HKDF of 32 bytes always succeeds: " + err.Error())
	}
	return out
}

// Ring holds the keys of an installation, the oldest first. It is a value: methods that change
// something return another Ring.
type Ring struct{ keys []Key }

// New returns a ring with one new active key.
func New(now time.Time) Ring {
	return Ring{keys: []Key{newKey(now, Active)}}
}

// Of returns a ring with one active key, which is also the unnamed one. It does not check the
// secret, and is for tests and for processes that need no file.
func Of(secret []byte) Ring {
	return Ring{keys: []Key{{ID: idOf(secret), Secret: secret, State: Active, Unnamed: true}}}
}

func newKey(now time.Time, state State) Key {
	secret := make([]byte, minSecret)
	_, _ = rand.Read(secret) // never fails
	return Key{ID: idOf(secret), Secret: secret, State: state, Created: now.UTC().Truncate(time.Second)}
}

func idOf(secret []byte) string {
	h := sha256.New()
	h.Write([]byte("quartet installation key\x00"))
	h.Write(secret)
	return hex.EncodeToString(h.Sum(nil))[:idLength]
}

// Keys returns all keys, the oldest first. The caller must not change them.
func (r Ring) Keys() []Key { return r.keys }

// IDs returns the ids of all keys, the oldest first.
func (r Ring) IDs() []string {
	ids := make([]string, len(r.keys))
	for i, k := range r.keys {
		ids[i] = k.ID
	}
	return ids
}

// Active returns the key that signs.
func (r Ring) Active() Key {
	for _, k := range r.keys {
		if k.State == Active {
			return k
		}
	}
	return Key{} // of the zero Ring only
}

// Pending returns the key that is to sign next; false if there is none.
func (r Ring) Pending() (Key, bool) {
	i := slices.IndexFunc(r.keys, func(k Key) bool { return k.State == Pending })
	if i < 0 {
		return Key{}, false
	}
	return r.keys[i], true
}

// Find returns the key with an id, or the unnamed key for "". It returns false if there is none.
func (r Ring) Find(id string) (Key, bool) {
	for _, k := range r.keys {
		if k.ID == id || id == "" && k.Unnamed {
			return k, true
		}
	}
	return Key{}, false
}

// Add returns the ring with a new pending key.
func (r Ring) Add(now time.Time) (Ring, error) {
	if k, ok := r.Pending(); ok {
		return r, fmt.Errorf("key %s is pending already; activate or retire it first", k.ID)
	}
	if len(r.keys) >= MaxKeys {
		return r, fmt.Errorf("the file has %d keys, which is the most it holds; retire one first", len(r.keys))
	}
	return Ring{keys: append(slices.Clone(r.keys), newKey(now, Pending))}, nil
}

// Activate returns a ring in which the key with an id is active, and the key that was active
// before is old.
func (r Ring) Activate(id string) (Ring, error) {
	if _, err := r.named(id); err != nil {
		return r, err
	}
	next := Ring{keys: slices.Clone(r.keys)}
	for i, k := range next.keys {
		switch {
		case k.ID == id:
			next.keys[i].State = Active
		case k.State == Active:
			next.keys[i].State = Old
		}
	}
	return next, nil
}

// Retire returns the ring without the key with an id, which must not be the active one.
func (r Ring) Retire(id string) (Ring, error) {
	k, err := r.named(id)
	if err != nil {
		return r, err
	}
	if k.State == Active {
		return r, fmt.Errorf("key %s is the active one; activate another one first", id)
	}
	return Ring{keys: slices.DeleteFunc(slices.Clone(r.keys), func(k Key) bool { return k.ID == id })}, nil
}

func (r Ring) named(id string) (Key, error) {
	if k, ok := r.Find(id); ok && id != "" {
		return k, nil
	}
	return Key{}, fmt.Errorf("no key %q; the file has %s", id, strings.Join(r.IDs(), ", "))
}

// format returns the contents of the file.
func (r Ring) format() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%d\n", header, len(r.keys))
	for _, k := range r.keys {
		created := "-"
		if !k.Created.IsZero() {
			created = k.Created.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(&b, "%s %s %s %s", k.ID, hex.EncodeToString(k.Secret), created, k.State)
		if k.Unnamed {
			b.WriteString(" " + unnamed)
		}
		b.WriteByte('\n')
	}
	return []byte(b.String())
}

// errFormat is the error for a file that is no key file. Errors quote nothing of the file, because
// its contents are secret.
var errFormat = errors.New("it holds neither 64 or more hex digits nor a list of keys")

// Parse returns the keys of a file: those that format wrote, or one key of 64 to 512 hex digits, the older format.
func Parse(raw []byte) (Ring, error) {
	if len(raw) > MaxFile {
		return Ring{}, fmt.Errorf("it has more than %d bytes", MaxFile)
	}
	first, rest, _ := strings.Cut(string(raw), "\n")
	count, isRing := strings.CutPrefix(first, header)
	if !isRing {
		secret, err := hex.DecodeString(strings.TrimSpace(string(raw)))
		if err != nil || len(secret) < minSecret || len(secret) > maxSecret {
			return Ring{}, errFormat
		}
		return Of(secret), nil
	}
	want, err := strconv.Atoi(count)
	if err != nil || want < 1 || want > MaxKeys {
		return Ring{}, fmt.Errorf("its first line must end with the number of keys, 1 to %d", MaxKeys)
	}
	if !strings.HasSuffix(rest, "\n") {
		return Ring{}, errors.New("it is cut short")
	}
	lines := strings.Split(strings.TrimSuffix(rest, "\n"), "\n")
	if len(lines) != want {
		return Ring{}, fmt.Errorf("its first line says that it has %d keys, and it has %d", want, len(lines))
	}
	var r Ring
	states := map[State]int{}
	named := 0
	for i, line := range lines {
		k, err := parseKey(line)
		if err != nil {
			return Ring{}, fmt.Errorf("line %d: %w", i+2, err)
		}
		if _, twice := r.Find(k.ID); twice {
			return Ring{}, fmt.Errorf("line %d: key %s is there twice", i+2, k.ID)
		}
		if k.Unnamed {
			named++
		}
		states[k.State]++
		r.keys = append(r.keys, k)
	}
	if states[Active] != 1 || states[Pending] > 1 || named > 1 {
		return Ring{}, errors.New("it must have one active key, and at most one pending and one unnamed key")
	}
	return r, nil
}

// parseKey parses the line of one key.
func parseKey(line string) (Key, error) {
	f := strings.Split(line, " ")
	if len(f) != 4 && (len(f) != 5 || f[4] != unnamed) {
		return Key{}, errors.New("it must be an id, hex digits, a time, a state, and optionally " + unnamed)
	}
	secret, err := hex.DecodeString(f[1])
	if err != nil || len(secret) < minSecret || len(secret) > maxSecret {
		return Key{}, fmt.Errorf("the key must have %d to %d hex digits", 2*minSecret, 2*maxSecret)
	}
	k := Key{ID: idOf(secret), Secret: secret, State: State(f[3]), Unnamed: len(f) == 5}
	if k.ID != f[0] {
		return Key{}, errors.New("the id is not that of the key: one of both was changed")
	}
	if f[2] != "-" {
		k.Created, err = time.Parse(time.RFC3339, f[2])
		if err != nil {
			return Key{}, errors.New("the time must be as 2026-01-02T15:04:05Z, or -")
		}
		k.Created = k.Created.UTC().Truncate(time.Second)
	}
	if k.State != Active && k.State != Pending && k.State != Old {
		return Key{}, errors.New("the state must be active, pending or old")
	}
	return k, nil
}
