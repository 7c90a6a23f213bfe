package localtoken

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
)

// Others returns the other addresses at which the server at addr listens, sorted: those of running servers
// of this user with the same token. It looks at maxSwept files at most, and ignores files that cannot be
// read. If the server at addr has no token file, it returns nil and no error.
func Others(addr string) ([]string, error) {
	token, err := Read(addr)
	if err != nil || token == "" {
		return nil, err
	}
	all, err := running()
	if err != nil {
		return nil, err
	}
	var others []string
	for at, t := range all {
		if t == token && Path(at) != Path(addr) {
			others = append(others, at)
		}
	}
	slices.Sort(others)
	return others, nil
}

// Running returns the addresses at which servers of this user listen, both for gRPC and for REST, sorted. It
// looks at maxSwept files at most, and ignores files that cannot be read.
func Running() ([]string, error) {
	all, err := running()
	return slices.Sorted(maps.Keys(all)), err
}

// running returns the tokens of the servers of this user that run, by their addresses.
func running() (map[string]string, error) {
	d, err := os.Open(Dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxSwept)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	tokens := map[string]string{}
	for _, name := range names {
		if _, err := netip.ParseAddrPort(name); err != nil {
			continue
		}
		if t, err := Read(name); err == nil && t != "" {
			tokens[name] = t
		}
	}
	return tokens, nil
}
