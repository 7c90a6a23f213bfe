package archive

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"filippo.io/age"

	"quartet/pkg/keyfile"
)

// A sealed archive is a first line, the archive encrypted in the format of age (filippo.io/age), a tag,
// which is the HMAC-SHA-256 of both, and sealedEnd. The first line is:
//
//	quartet-backup 2 <id of the installation's key> <for>\n
//
// The key of the HMAC is derived from the installation's key, also if the archive is encrypted for other
// recipients. Encryption alone does not authenticate: age's recipients are public keys, so anybody who knows
// one can make a file for it.
const (
	sealedBegin = "quartet-backup 2 "
	sealedEnd   = "quartet-backup-end\n"
	// forInstallation and forRecipients say who can decrypt the file.
	forInstallation = "installation"
	forRecipients   = "recipients"

	maxBegin     = 128     // bytes of the first line
	maxAgeHeader = 1 << 16 // bytes
	// MaxRecipients is the largest number of recipients of an archive.
	MaxRecipients = 20

	authPurpose = "quartet backup authentication 1"
	sealPurpose = "quartet backup encryption 1"
	wrapPurpose = "quartet backup file key 1"
	stanzaType  = "quartet-installation-key"
	saltBytes   = 16
)

// ParseRecipients parses the recipients of an archive, as age writes them (age1…).
func ParseRecipients(texts []string) ([]age.Recipient, error) {
	if len(texts) > MaxRecipients {
		return nil, fmt.Errorf("there are %d recipients; there may be at most %d", len(texts), MaxRecipients)
	}
	var all []age.Recipient
	for i, text := range texts {
		r, err := age.ParseRecipients(strings.NewReader(text))
		if err != nil || len(r) != 1 {
			// The error does not quote the text, which may be an identity and thus secret.
			return nil, fmt.Errorf("number %d is not a recipient of age; it must be as age-keygen prints it, age1…",
				i+1)
		}
		all = append(all, r...)
	}
	return all, nil
}

// Sealer encrypts and authenticates an archive that is written to it. Close completes the file.
type Sealer struct {
	to  io.Writer // the file, and mac
	mac hash.Hash
	age io.WriteCloser
	raw io.Writer
}

// Seal returns a Sealer that writes a sealed archive to w. It encrypts the archive for recipients, or
// for the holders of key if there are none, and authenticates it with key. Without a call of Close the
// file is incomplete.
func Seal(w io.Writer, key keyfile.Key, recipients []age.Recipient) (*Sealer, error) {
	kind := forRecipients
	if len(recipients) == 0 {
		kind, recipients = forInstallation, []age.Recipient{installation{key}}
	}
	s := &Sealer{mac: newMAC(key), raw: w}
	s.to = io.MultiWriter(w, s.mac)
	if _, err := io.WriteString(s.to, sealedBegin+key.ID+" "+kind+"\n"); err != nil {
		return nil, err
	}
	var err error
	s.age, err = age.Encrypt(s.to, recipients...)
	return s, err
}

// Write implements io.Writer. It encrypts b, and writes what is complete to the file.
func (s *Sealer) Write(b []byte) (int, error) { return s.age.Write(b) }

// Close writes the end of the file. It does not close the writer that Seal was given.
func (s *Sealer) Close() error {
	if err := s.age.Close(); err != nil {
		return err
	}
	_, err := s.raw.Write(append(s.mac.Sum(nil), sealedEnd...))
	return err
}

func newMAC(key keyfile.Key) hash.Hash { return hmac.New(sha256.New, key.Derive(authPurpose)) }

// installation is the recipient and the identity of age for a key of the installation.
type installation struct{ key keyfile.Key }

// aead returns a cipher for one file, which salt distinguishes from all others.
func (i installation) aead(salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, i.key.Derive(sealPurpose), salt, wrapPurpose, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Wrap implements age.Recipient. It encrypts fileKey for the holders of the installation's key.
func (i installation) Wrap(fileKey []byte) ([]*age.Stanza, error) {
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails
	aead, err := i.aead(salt)
	if err != nil {
		return nil, err
	}
	// The key of the cipher is used for this salt only, so a constant nonce is safe.
	body := aead.Seal(nil, make([]byte, aead.NonceSize()), fileKey, nil) //nolint:gosec // see above
	return []*age.Stanza{{
		Type: stanzaType, Args: []string{i.key.ID, base64.RawStdEncoding.EncodeToString(salt)},
		Body: body,
	}}, nil
}

// Unwrap implements age.Identity. It returns age.ErrIncorrectIdentity if Wrap made none of the stanzas with this key.
func (i installation) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	for _, s := range stanzas {
		if s.Type != stanzaType || len(s.Args) != 2 || s.Args[0] != i.key.ID {
			continue
		}
		salt, err := base64.RawStdEncoding.DecodeString(s.Args[1])
		if err != nil || len(salt) != saltBytes {
			continue
		}
		aead, err := i.aead(salt)
		if err != nil {
			return nil, err
		}
		if fileKey, err := aead.Open(nil, make([]byte, aead.NonceSize()), s.Body, nil); err == nil {
			return fileKey, nil
		}
	}
	return nil, age.ErrIncorrectIdentity
}

// The errors of Open, beside those of Read.
var (
	// ErrKey means that the file needs a key of the installation that is not in Keys.Ring.
	ErrKey = errors.New("the backup needs another key of the installation")
	// ErrUnauthenticated means that the file was not made with the installation's key.
	ErrUnauthenticated = errors.New("the backup is not authenticated")
	// ErrIdentity means that no identity was given that can decrypt the file.
	ErrIdentity = errors.New("the backup is encrypted for other recipients")
)

// Keys are what a sealed archive is opened with.
type Keys struct {
	// Ring has the installation's keys.
	Ring keyfile.Ring
	// Identities decrypt archives for recipients.
	Identities []age.Identity
	// Unauthenticated also accepts archives that cannot be authenticated: those that were
	// made before archives were sealed, and those for recipients that were made with a key
	// that is not in Ring. An archive whose key is in Ring must still be authentic.
	Unauthenticated bool
}

// File is an archive that Open accepted. It is authentic unless Authenticated returns false.
type File struct {
	f          io.ReadSeeker
	keys       Keys
	plain      bool // not sealed
	begin      string
	size       int64        // bytes of the first line and the age file
	key        *keyfile.Key // that made the file; nil if it is not in Keys.Ring, and if plain
	identities []age.Identity
	tag        []byte // the HMAC that the file has
}

// Authenticated reports whether the file was made with a key of the installation. It can be false only
// if Open was called with Keys.Unauthenticated.
func (a *File) Authenticated() bool { return a.key != nil }

var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// Open reads a sealed archive to its end and checks that a key of the installation authenticates it,
// before anything in it is interpreted; see Keys.Unauthenticated for which archives it skips the check. The
// errors are ErrForeign, ErrCut, ErrKey, ErrIdentity, ErrUnauthenticated, and ErrDamaged for a file whose
// encrypted contents were changed after it was made.
func Open(f io.ReadSeeker, keys Keys) (*File, error) {
	a := &File{f: f, keys: keys}
	if err := a.readBegin(); err != nil || a.plain {
		return a, err
	}
	if err := a.readEnd(); err != nil {
		return nil, err
	}
	fields := strings.Fields(strings.TrimPrefix(strings.TrimSuffix(a.begin, "\n"), sealedBegin))
	if len(fields) != 2 || fields[1] != forInstallation && fields[1] != forRecipients {
		return nil, fmt.Errorf("%w: its first line is %q", ErrForeign, a.begin)
	}
	key, ok := keys.Ring.Find(fields[0])
	switch {
	case ok:
		a.key = &key
	case !keys.Unauthenticated || fields[1] == forInstallation:
		return nil, fmt.Errorf("%w: it was made with key %s, and the key file has %s; give the key file of that "+
			"installation, or the copy of it that still has the key", ErrKey, fields[0], hasKeys(keys.Ring))
	}
	a.identities = keys.Identities
	if fields[1] == forInstallation {
		a.identities = []age.Identity{installation{key}}
	} else if len(keys.Identities) == 0 {
		return nil, fmt.Errorf("%w: give the file with an identity of one of them", ErrIdentity)
	}
	return a, a.authenticate()
}

func hasKeys(r keyfile.Ring) string {
	if len(r.IDs()) == 0 {
		return "none"
	}
	return strings.Join(r.IDs(), ", ")
}

// readBegin reads the first line.
func (a *File) readBegin() error {
	raw := make([]byte, maxBegin)
	if _, err := a.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	n, err := io.ReadFull(a.f, raw)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	raw = raw[:n]
	if bytes.HasPrefix(raw, zstdMagic) {
		a.plain = true
		if !a.keys.Unauthenticated {
			return fmt.Errorf("%w: it was made by a version of Quartet that did not authenticate backups, or by "+
				"somebody else", ErrUnauthenticated)
		}
		return nil
	}
	if !bytes.HasPrefix(raw, []byte(sealedBegin)) {
		if bytes.HasPrefix([]byte(sealedBegin), raw) && n > 0 {
			return fmt.Errorf("%w: it has only %d bytes", ErrCut, n)
		}
		return fmt.Errorf("%w: it does not begin like one", ErrForeign)
	}
	line, _, ok := bytes.Cut(raw, []byte("\n"))
	if !ok {
		return fmt.Errorf("%w: its first line does not end", ErrCut)
	}
	a.begin = string(line) + "\n"
	return nil
}

// readEnd sets size and tag, and checks that the file ends with sealedEnd.
func (a *File) readEnd() error {
	trailer := int64(sha256.Size + len(sealedEnd))
	size, err := a.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if a.size = size - trailer; a.size < int64(len(a.begin)) {
		return fmt.Errorf("%w: it has only %d bytes", ErrCut, size)
	}
	if _, err := a.f.Seek(a.size, io.SeekStart); err != nil {
		return err
	}
	raw := make([]byte, trailer)
	if _, err := io.ReadFull(a.f, raw); err != nil {
		return err
	}
	if string(raw[sha256.Size:]) != sealedEnd {
		return fmt.Errorf("%w: it has no ending", ErrCut)
	}
	a.tag = raw[:sha256.Size]
	return nil
}

// authenticate returns an error unless the HMAC of the file equals its tag. Without a key it checks nothing.
func (a *File) authenticate() error {
	if a.key == nil {
		return nil
	}
	if _, err := a.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	mac := newMAC(*a.key)
	if n, err := io.Copy(mac, io.LimitReader(a.f, a.size)); err != nil || n < a.size {
		return errors.Join(err, shorter(n < a.size))
	}
	if hmac.Equal(mac.Sum(nil), a.tag) {
		return nil
	}
	return a.diagnose()
}

func shorter(is bool) error {
	if is {
		return fmt.Errorf("%w: it became shorter while it was read", ErrCut)
	}
	return nil
}

// diagnose returns the error for a file whose HMAC differs from its tag. It decrypts the file, because
// age authenticates each chunk of 64 KiB: if a chunk is not authentic, the file was changed after it
// was made, and the error is ErrDamaged. If all chunks are authentic, the file was made without the
// installation's key, and the error is ErrUnauthenticated. That is also the error for a file that
// cannot be decrypted at all.
func (a *File) diagnose() error {
	counted := &counter{}
	plain, err := a.decrypt(func(r io.Reader) io.Reader { counted.r = r; return counted })
	if err == nil {
		_, err = io.Copy(io.Discard, plain)
		if err != nil {
			return fmt.Errorf("%w: it was changed at or shortly before byte %d of %d", ErrDamaged,
				counted.n+int64(len(a.begin)), a.size)
		}
	}
	return fmt.Errorf("%w: key %s did not make it as it is; nothing in it can be trusted", ErrUnauthenticated, a.key.ID)
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// decrypt returns a reader of the decrypted archive. It reads the encrypted part of the file, which
// follows the first line, through the reader that through returns for it.
func (a *File) decrypt(through func(io.Reader) io.Reader) (io.Reader, error) {
	body := int64(len(a.begin))
	if _, err := a.f.Seek(body, io.SeekStart); err != nil {
		return nil, err
	}
	// age reads the header into memory as a whole, so its size is bounded first.
	if _, err := age.ExtractHeader(io.LimitReader(a.f, min(maxAgeHeader, a.size-body))); err != nil {
		return nil, fmt.Errorf("%w: the list of its recipients cannot be read: %w", ErrDamaged, err)
	}
	if _, err := a.f.Seek(body, io.SeekStart); err != nil {
		return nil, err
	}
	plain, err := age.Decrypt(through(io.LimitReader(a.f, a.size-body)), a.identities...)
	if none := new(age.NoIdentityMatchError); errors.As(err, &none) {
		return nil, fmt.Errorf("%w than the identities that were given", ErrIdentity)
	}
	return plain, err
}

// Read reads the archive as the function Read does. If the file is authenticated, it also checks
// the tag again at the end, so that a change since Open is always an error: ErrDamaged, or what
// reading the changed part returned. After an error, what v received must not be used.
func (a *File) Read(v Visitor) (Manifest, Totals, error) {
	if a.plain {
		if _, err := a.f.Seek(0, io.SeekStart); err != nil {
			return Manifest{}, Totals{}, err
		}
		return Read(a.f, v)
	}
	var raw io.Reader
	mac := sha256.New()
	if a.key != nil {
		mac = newMAC(*a.key)
	}
	_, _ = io.WriteString(mac, a.begin) // a hash never fails
	plain, err := a.decrypt(func(r io.Reader) io.Reader {
		raw = io.TeeReader(r, mac)
		return raw
	})
	if err != nil {
		return Manifest{}, Totals{}, err
	}
	m, totals, err := Read(plain, v)
	if err != nil {
		return m, totals, err
	}
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return m, totals, err
	}
	if a.key != nil && !hmac.Equal(mac.Sum(nil), a.tag) {
		return m, totals, fmt.Errorf("%w: it was changed while it was read", ErrDamaged)
	}
	return m, totals, nil
}
