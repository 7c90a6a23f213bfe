package session

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// LocalContext is the name of the server of this user on this machine, which every file has.
	LocalContext = "local"
	// ContextVariable is the environment variable that names a context for one command.
	ContextVariable = "QUARTET_CONTEXT"

	maxContexts = 200
	maxFile     = 256 << 10 // bytes
	maxToken    = 16 << 10  // bytes
)

// Context says how a server is reached.
type Context struct {
	// Address is its gRPC address, host:port.
	Address string `yaml:"address" json:"address"`
	// TokenFile is the absolute path of a file with the credential. Empty: that of the local server, or none.
	TokenFile string `yaml:"token_file,omitempty" json:"tokenFile,omitempty"`
	// TLS makes connections use TLS; so does each of the files.
	TLS bool `yaml:"tls,omitempty" json:"tls,omitempty"`
	// CAFile, CertFile and KeyFile are absolute paths, as of --tls-ca-file, --tls-cert-file and --tls-key-file.
	CAFile   string `yaml:"tls_ca_file,omitempty" json:"tlsCaFile,omitempty"`
	CertFile string `yaml:"tls_cert_file,omitempty" json:"tlsCertFile,omitempty"`
	KeyFile  string `yaml:"tls_key_file,omitempty" json:"tlsKeyFile,omitempty"`
}

// Token reads the credential. It is "" if the context has no file for one. A file that others can read is an error.
func (c Context) Token() (string, error) {
	if c.TokenFile == "" {
		return "", nil
	}
	f, err := os.Open(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("credential: %w", err)
	}
	defer f.Close()
	if err := checkPrivate(f); err != nil {
		return "", err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("credential: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if len(raw) > maxToken || token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("credential: %s must have one credential, on one line", c.TokenFile)
	}
	return token, nil
}

// ContextFile has the contexts of a user.
type ContextFile struct {
	// Current is the name of the context that is used. Local: no context.
	Current string `yaml:"current,omitempty"`
	// Contexts are the others, by name.
	Contexts map[string]Context `yaml:"contexts,omitempty"`
}

// Names returns the names of all contexts, Local first.
func (f ContextFile) Names() []string {
	return append([]string{LocalContext}, slices.Sorted(maps.Keys(f.Contexts))...)
}

// ContextsPath returns where the file is. It need not exist.
func ContextsPath() (string, error) {
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "quartet", "contexts.yaml"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("the file of contexts: %w; name a directory with XDG_CONFIG_HOME", err)
	}
	return filepath.Join(home, ".config", "quartet", "contexts.yaml"), nil
}

// ReadContexts returns the contexts of the user. Without a file, or without a home directory, there are none. A file
// that other users can read is an error.
func ReadContexts() (ContextFile, error) {
	none := ContextFile{Current: LocalContext, Contexts: map[string]Context{}}
	path, err := ContextsPath()
	if err != nil {
		return none, nil // a service without a home directory has no contexts
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("contexts: %w", err)
	}
	defer f.Close()
	if err := checkPrivate(f); err != nil {
		return none, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return none, fmt.Errorf("contexts: %w", err)
	}
	if len(raw) > maxFile {
		return none, fmt.Errorf("contexts: %s is larger than %d bytes", path, maxFile)
	}
	out := ContextFile{}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(&out); err != nil && !errors.Is(err, io.EOF) {
		return none, fmt.Errorf("contexts: %s: %w", path, err)
	}
	if out.Current == "" {
		out.Current = LocalContext
	}
	if out.Contexts == nil {
		out.Contexts = map[string]Context{}
	}
	return out, nil
}

// chosenContext returns the context that applies: the one with this name, or if it is empty the current one. It is nil
// for LocalContext.
func chosenContext(name string) (*Context, error) {
	f, err := ReadContexts()
	if err != nil {
		return nil, err
	}
	from := "$" + ContextVariable
	if name == "" {
		name, from = f.Current, "the current context"
	}
	if name == LocalContext {
		return nil, nil //nolint:nilnil // there is none to apply
	}
	c, ok := f.Contexts[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", from, UnknownContext(name, f))
	}
	return &c, nil
}

// UnknownContext returns the error of a name that no context has.
func UnknownContext(name string, f ContextFile) error {
	return fmt.Errorf("there is no context %q; there are %s", name, strings.Join(f.Names(), ", "))
}

// validName is how contexts may be called.
var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

// CheckContextName refuses a name that no context may have.
func CheckContextName(name string) error {
	if name == LocalContext {
		return fmt.Errorf("%q is the server of this user on this machine; choose another name", LocalContext)
	}
	if !validName.MatchString(name) {
		return fmt.Errorf("%q cannot be the name of a context; use 1 to 63 letters, digits, dots, dashes and "+
			"underscores, and begin with a letter or digit", name)
	}
	return nil
}

// ChangeContexts reads the file, calls change with its content, and writes the changed content with the mode 0600. If
// change returns an error, nothing is written. Where files can be locked, two changes at the same time are made one
// after the other.
func ChangeContexts(change func(*ContextFile) error) error {
	path, err := ContextsPath()
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	unlock, err := lockContexts(filepath.Join(dir, ".contexts.lock"))
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	defer unlock()
	f, err := ReadContexts()
	if err != nil {
		return err
	}
	if err := change(&f); err != nil {
		return err
	}
	if len(f.Contexts) > maxContexts {
		return fmt.Errorf("there are %d contexts already, the most there may be; remove one", maxContexts)
	}
	if f.Current == LocalContext {
		f.Current = ""
	}
	raw, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	if err := ReplaceFile(path, raw, 0o600); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	return nil
}

// checkPrivate refuses a file that other users can read or change. Windows has no such modes; there the directory
// protects it.
func checkPrivate(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", f.Name())
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("%s is open to other users (mode %04o); if none of them changed it: chmod 600 %s", f.Name(),
			mode, f.Name())
	}
	return nil
}
