package archives

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// maxCredentials is the size of a credentials file at most.
const maxCredentials = 16 << 10

// metadataTerm bounds a request to the metadata service of a cloud, which on other machines does not answer.
const metadataTerm = 5 * time.Second

// open returns the credentials in a file, which is read again when it changes; without a file those of the environment
// (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), of the file ~/.aws/credentials, or of the machine's or the pod's role.
func open(file string) (*credentials.Credentials, error) {
	if file == "" {
		return credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
			&credentials.IAM{Client: &http.Client{Timeout: metadataTerm}},
		}), nil
	}
	p := &fileProvider{path: file}
	if _, err := p.Retrieve(); err != nil {
		return nil, err
	}
	return credentials.New(p), nil
}

// fileProvider reads credentials in a file.
type fileProvider struct {
	path string

	mu    sync.Mutex
	state fileState // of the file when it was read last
}

// fileState is what changes when a file is changed.
type fileState struct {
	changed time.Time
	size    int64
}

// stateOf returns the state of a file, the zero one if it cannot be read.
func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}
	}
	return fileState{info.ModTime(), info.Size()}
}

// RetrieveWithCredContext implements credentials.Provider.
func (p *fileProvider) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return p.Retrieve()
}

// Retrieve implements credentials.Provider.
func (p *fileProvider) Retrieve() (credentials.Value, error) {
	state := stateOf(p.path)
	v, err := readCredentials(p.path)
	if err != nil {
		return v, fmt.Errorf("%w: %w", errCredentials, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
	return v, nil
}

// IsExpired implements credentials.Provider: it reports whether the file has changed.
func (p *fileProvider) IsExpired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state == fileState{} || p.state != stateOf(p.path)
}

// errCredentials is wrapped by each error of a credentials file.
var errCredentials = errors.New("credentials file")

// readCredentials reads a file with lines such as access_key_id = … and secret_access_key = …, with or without the
// prefix aws_, as in the credentials files of Amazon's tools. It refuses a file that other users may read or change,
// and one with several sections.
func readCredentials(path string) (v credentials.Value, err error) {
	f, err := os.Open(path)
	if err != nil {
		return v, fmt.Errorf("%w; name a file that this user can read", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return v, err
	}
	// A volume of Kubernetes gives a file to the group of the process, which is for it alone.
	if mode := info.Mode(); mode.IsRegular() && mode.Perm()&0o037 != 0 && runtime.GOOS != "windows" {
		return v, fmt.Errorf("%s has mode %04o, so other users may read or change it; it must be 0600, or 0440 where "+
			"a group of its own reads it: chmod 600 %[1]s", path, mode.Perm())
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxCredentials+1))
	if err != nil {
		return v, err
	}
	if len(raw) > maxCredentials {
		return v, fmt.Errorf("%s has more than %d bytes", path, maxCredentials)
	}
	sections := 0
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' {
			if sections++; sections > 1 {
				return v, fmt.Errorf("%s has more than one section; it must have the credentials for the archive alone",
					path)
			}
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		switch value = strings.TrimSpace(value); strings.TrimPrefix(strings.TrimSpace(name), "aws_") {
		case "access_key_id":
			v.AccessKeyID = value
		case "secret_access_key":
			v.SecretAccessKey = value
		case "session_token":
			v.SessionToken = value
		}
	}
	if v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return v, fmt.Errorf("%s must have the lines access_key_id = … and secret_access_key = …", path)
	}
	v.SignerType = credentials.SignatureV4
	return v, nil
}
