package homes

import (
	"path"
	"strings"

	"quartet/pkg/fault"
)

// Limits of paths (SPEC A11).
const (
	maxPathBytes = 1024
	maxPartBytes = 255 // what file systems allow for one name
)

// Path validates a path of a request, relative to a home, and returns it without
// redundant parts. field names it in errors. os.Root confines every path; Path gives the
// errors that say what to change.
func Path(field, p string) (string, error) {
	if err := fault.TextBytes(field, p, maxPathBytes, true); err != nil {
		return "", err
	}
	if strings.HasPrefix(p, "/") {
		return "", outside(field, p)
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "..":
			return "", outside(field, p)
		case len(part) > maxPartBytes:
			return "", fault.Invalid(field, p, "must have names of at most 255 bytes")
		case strings.HasPrefix(part, stagedPrefix):
			return "", fault.Invalid(field, p, "must not have a name that begins with "+stagedPrefix+
				", which are files being written")
		}
	}
	return path.Clean(p), nil
}

// outside returns PATH_OUTSIDE_HOME for a path p, which the request has in field.
func outside(field, p string) error {
	return fault.PathOutsideHome.Newf("%s %q leads out of the agent's home; give a path relative to it, without ..",
		field, p).
		With("path", p).WithField(field, "must stay in the agent's home")
}
