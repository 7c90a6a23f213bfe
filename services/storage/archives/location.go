package archives

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// LocationExample is a URL as Parse takes it, for help texts and errors.
const LocationExample = "s3://bucket/prefix?endpoint=https://s3.example.com&region=eu-central-1"

// Location says where archives are.
type Location struct {
	Bucket string
	// Prefix is the prefix of the names of all objects; empty, or without slashes at its ends.
	Prefix string
	// Endpoint is the host, and the port if there is one, of the server; empty: Amazon S3.
	Endpoint string
	// Plain says that the server is spoken to without TLS.
	Plain  bool
	Region string
}

// defaultRegion is what most servers that have no regions call theirs.
const defaultRegion = "us-east-1"

// ParseLocation reads a URL such as Example. Without an endpoint it is a bucket of Amazon S3, whose region must be
// given. An endpoint without a scheme is spoken to with TLS.
func ParseLocation(text string) (l Location, err error) {
	u, err := url.Parse(text)
	if err != nil {
		// without the text, which may have a secret where none belongs
		return l, fmt.Errorf("%w; it must be as %s", errors.Unwrap(err), LocationExample)
	}
	if u.Scheme != "s3" || u.Host == "" || u.Opaque != "" {
		return l, errors.New("it must be as " + LocationExample)
	}
	if u.User != nil || u.Fragment != "" {
		return l, errors.New("it must be as " + LocationExample + "; credentials are in a file of their own, or in " +
			"the environment")
	}
	if l.Bucket = u.Host; s3utils.CheckValidBucketNameStrict(l.Bucket) != nil || strings.Contains(l.Bucket, ":") {
		return l, fmt.Errorf("%q is no name of a bucket; it must be as %s", l.Bucket, LocationExample)
	}
	l.Prefix = strings.Trim(u.Path, "/")
	if slices.ContainsFunc(strings.Split(l.Prefix, "/"), func(part string) bool {
		return part == "." || part == ".." ||
			part == ""
	}) && l.Prefix != "" || len(l.Prefix) > 512 {
		return l, fmt.Errorf("the prefix %q has an empty part, or one that is . or .., or is longer than 512 bytes",
			l.Prefix)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return l, fmt.Errorf("%w; it must be as %s", err, LocationExample)
	}
	for name, values := range query {
		if len(values) != 1 {
			return l, fmt.Errorf("%s is given %d times", name, len(values))
		}
		switch name {
		case "endpoint":
			err = l.endpoint(values[0])
		case "region":
			l.Region = values[0]
		default:
			err = fmt.Errorf("it has no parameter %q; those that it has are endpoint and region", name)
		}
		if err != nil {
			return l, err
		}
	}
	if l.Endpoint == "" && l.Region == "" {
		return l, errors.New("it has neither an endpoint nor the region of a bucket of Amazon S3; it must be as " +
			LocationExample)
	}
	if l.Region == "" {
		l.Region = defaultRegion
	}
	return l, nil
}

// endpoint reads the address of a server.
func (l *Location) endpoint(text string) error {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" ||
		strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("endpoint must be the address of a server, such as https://s3.example.com or " +
			"http://127.0.0.1:9000, without a path")
	}
	l.Endpoint, l.Plain = u.Host, u.Scheme == "http"
	return nil
}

// String returns the bucket and the prefix, and the server unless it is Amazon S3.
func (l Location) String() string {
	text := "s3://" + l.Bucket
	if l.Prefix != "" {
		text += "/" + l.Prefix
	}
	if l.Endpoint != "" {
		text += " of " + l.Endpoint
	}
	return text
}

// key returns the name of an object below the prefix.
func (l Location) key(parts ...string) string {
	if l.Prefix != "" {
		parts = append([]string{l.Prefix}, parts...)
	}
	return strings.Join(parts, "/")
}

// host returns what the client connects to.
func (l Location) host() string {
	if l.Endpoint == "" {
		return "s3.amazonaws.com"
	}
	return l.Endpoint
}

// Loopback reports whether the server is on this machine.
func (l Location) Loopback() bool {
	host, _, err := net.SplitHostPort(l.Endpoint)
	if err != nil {
		host = l.Endpoint
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
