package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// DefaultDays is the validity of certificates, in days.
	DefaultDays = 365
	// MaxDays is the longest validity; common clients refuse a longer one.
	MaxDays = 825
	// MaxHosts is the maximum number of names and addresses of a certificate.
	MaxHosts = 100
	// authorityYears is the validity of the authority's own certificate, in years.
	authorityYears = 10
	// early is how long before now a certificate becomes valid, for clocks that are behind.
	early = time.Hour
	// secretBytes is the size of a secret, which is written as 64 hex digits.
	secretBytes = 32
)

// What was done about a file.
const (
	Made    = "made"    // it did not exist and was created
	Renewed = "renewed" // it existed and was replaced
	Kept    = "kept"    // it existed and was not changed
)

// Config holds the settings of an Authority.
type Config struct {
	Dir string
	// Days is the validity of certificates, 1 to MaxDays; 0 means DefaultDays.
	Days int
	// Owner and Group are the user and group ids of the files. If Owner is negative, neither is set.
	Owner, Group int
	Now          func() time.Time
}

// Authority issues certificates.
type Authority struct {
	cfg  Config
	cert *x509.Certificate
	key  *ecdsa.PrivateKey // nil: the authority is a foreign one, see the package
	pem  []byte
	// Done is Made or Kept: what Open did.
	Done string
}

// Open opens the authority of cfg.Dir, and creates it if there is none.
func Open(cfg Config) (*Authority, error) {
	if cfg.Days == 0 {
		cfg.Days = DefaultDays
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Days < 1 || cfg.Days > MaxDays {
		return nil, fmt.Errorf("a certificate for %d days: must be 1 to %d", cfg.Days, MaxDays)
	}
	a := &Authority{cfg: cfg, Done: Kept}
	if err := a.directory("", 0o755); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(a.path("ca.pem"))
	if errors.Is(err, fs.ErrNotExist) {
		return a, a.make()
	}
	if err != nil {
		return nil, err
	}
	a.pem = raw
	if a.cert, err = certificate(raw); err != nil {
		return nil, fmt.Errorf("%s: %w", a.path("ca.pem"), err)
	}
	key, err := os.ReadFile(a.path("authority/ca.key"))
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err != nil {
		return nil, err
	}
	if a.key, err = privateKey(key); err != nil {
		return nil, fmt.Errorf("%s: %w", a.path("authority/ca.key"), err)
	}
	if !a.key.PublicKey.Equal(a.cert.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of %s; put the right one there, or begin with an empty directory",
			a.path("authority/ca.key"), a.path("ca.pem"))
	}
	return a, nil
}

func (a *Authority) path(name string) string {
	return filepath.Join(a.cfg.Dir, filepath.FromSlash(name))
}

func (a *Authority) make() (err error) {
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	now := a.cfg.Now()
	template, err := a.template("Quartet's own authority", now.Add(-early), now.AddDate(authorityYears, 0, 0))
	if err != nil {
		return err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		return err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	a.Done = Made
	// The key is written first: a certificate without a key would be taken for that of a
	// foreign authority.
	return errors.Join(a.directory("authority", 0o700), a.writeKey("authority/ca.key", a.key),
		a.write("ca.pem", a.pem, 0o644))
}

func (a *Authority) template(name string, from, to time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{
		"Quartet",
	}}, NotBefore: from, NotAfter: to}, nil
}

var (
	goodName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	goodHost = regexp.MustCompile(
		`^(\*\.)?([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)
)

// Issue ensures that DIR/NAME has a valid certificate for these hosts, which are names or
// addresses. Without hosts the certificate is for a client only. An existing one is replaced
// if it is in the last third of its validity, if its hosts differ, if another authority signed
// it, or if it cannot be read. If the authority is a foreign one, Issue keeps an existing certificate
// in any case, and returns an error if there is none. It returns Made, Renewed or Kept.
func (a *Authority) Issue(name string, hosts []string) (done string, err error) {
	if !goodName.MatchString(name) || name == "authority" {
		return "", fmt.Errorf("%q is no name of a certificate: use small letters, digits and hyphens, up to 63, and "+
			"not authority", name)
	}
	if len(hosts) > MaxHosts {
		return "", fmt.Errorf("%s: %d hosts; at most %d stand in one certificate", name, len(hosts), MaxHosts)
	}
	var ips []net.IP
	var names []string
	for _, h := range hosts {
		switch ip := net.ParseIP(h); {
		case ip != nil:
			ips = append(ips, ip)
		case len(h) <= 253 && goodHost.MatchString(h):
			names = append(names, h)
		default:
			return "", fmt.Errorf("%s: %q is neither a host name nor an address", name, h)
		}
	}
	done = Made
	switch there, good := a.look(name, names, ips); {
	case good, there && a.key == nil:
		return Kept, nil
	case a.key == nil:
		return "", fmt.Errorf("%s has no key, so %s cannot be signed here: put tls.pem, tls.key and ca.pem there "+
			"yourself", a.path("authority/ca.key"), a.path(name))
	case there:
		done = Renewed
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	now := a.cfg.Now()
	until := now.AddDate(0, 0, a.cfg.Days)
	if until.After(a.cert.NotAfter) {
		until = a.cert.NotAfter
	}
	template, err := a.template(name, now.Add(-early), until)
	if err != nil {
		return "", err
	}
	template.DNSNames, template.IPAddresses = names, ips
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return "", err
	}
	return done, errors.Join(a.directory(name, 0o700), a.write(name+"/ca.pem", a.pem, 0o644),
		a.writeKey(name+"/tls.key", key),
		a.write(name+"/tls.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
}

// look reports whether there is a certificate, and whether it is good: it need not be replaced (see Issue).
func (a *Authority) look(name string, names []string, ips []net.IP) (there, good bool) {
	pair, err := tls.LoadX509KeyPair(a.path(name+"/tls.pem"), a.path(name+"/tls.key"))
	if err != nil {
		_, err = os.Stat(a.path(name + "/tls.pem"))
		return err == nil, false
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return true, false
	}
	signed := leaf.CheckSignatureFrom(a.cert) == nil
	left, life := leaf.NotAfter.Sub(a.cfg.Now()), leaf.NotAfter.Sub(leaf.NotBefore)
	same := slices.Equal(sorted(leaf.DNSNames), sorted(names)) &&
		slices.Equal(addresses(leaf.IPAddresses), addresses(ips))
	return true, signed && same && left > life/3
}

func sorted(in []string) []string { return slices.Sorted(slices.Values(in)) }

func addresses(ips []net.IP) []string {
	var out []string
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	slices.Sort(out)
	return out
}

// Secret ensures that the file DIR/NAME exists, and creates it with 64 random hex digits. It
// never replaces a file. It returns Made or Kept.
func (a *Authority) Secret(name string) (done string, err error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", fmt.Errorf("%q is no path inside %s", name, a.cfg.Dir)
	}
	_, err = os.Stat(a.path(name))
	if err == nil {
		return Kept, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	raw := make([]byte, secretBytes)
	_, _ = rand.Read(raw) // never fails
	if dir := filepath.Dir(filepath.FromSlash(name)); dir != "." {
		if err := a.directory(dir, 0o700); err != nil {
			return "", err
		}
	}
	return Made, a.write(name, []byte(hex.EncodeToString(raw)+"\n"), 0o600)
}

func (a *Authority) directory(name string, mode fs.FileMode) error {
	path := a.path(name)
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	if a.cfg.Owner < 0 {
		return nil
	}
	// The directory may exist with another mode, such as the mount point of a volume.
	return errors.Join(os.Chmod(path, mode), os.Chown(path, a.cfg.Owner, a.cfg.Group))
}

// write replaces a file atomically.
func (a *Authority) write(name string, text []byte, mode fs.FileMode) error {
	path := a.path(name)
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil && a.cfg.Owner >= 0 {
		err = os.Chown(f.Name(), a.cfg.Owner, a.cfg.Group)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func (a *Authority) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return a.write(name, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func certificate(raw []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

func privateKey(raw []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, errors.New("no private key in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	own, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("not an ECDSA key; this command signs with those alone")
	}
	return own, nil
}

// Seen describes a certificate.
type Seen struct {
	File        string    `json:"file"`
	Name        string    `json:"name"`
	SignedBy    string    `json:"signed_by"`
	Hosts       []string  `json:"hosts"`
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	Authority   bool      `json:"authority"`
	Fingerprint string    `json:"sha256"`
}

// Look reads the first certificate of a file.
func Look(file string) (Seen, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return Seen{}, err
	}
	c, err := certificate(raw)
	if err != nil {
		return Seen{}, fmt.Errorf("%s: %w", file, err)
	}
	sum := sha256.Sum256(c.Raw)
	return Seen{
		File: file, Name: c.Subject.CommonName, SignedBy: c.Issuer.CommonName, Hosts: append(slices.Clone(c.DNSNames),
			addresses(c.IPAddresses)...),
		NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(), Authority: c.IsCA,
		Fingerprint: strings.ToLower(hex.EncodeToString(sum[:])),
	}, nil
}
