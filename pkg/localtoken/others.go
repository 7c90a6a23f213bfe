package localtoken

import (
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Others returns the other addresses at which the server at addr listens, in order: those of running
// servers of this user with the same token. It looks at maxSwept files at most, and returns none if the
// server at addr has no token file. Files that cannot be read are left out.
func Others(addr string) ([]string, error) {
	token, err := Read(addr)
	if err != nil || token == "" {
		return nil, err
	}
	d, err := os.Open(Dir())
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxSwept)
	if err != nil {
		return nil, err
	}
	var others []string
	for _, name := range names {
		if _, err := netip.ParseAddrPort(name); err != nil || Path(name) == Path(addr) {
			continue
		}
		if t, err := Read(name); err == nil && t == token {
			others = append(others, name)
		}
	}
	slices.SortFunc(others, strings.Compare)
	return others, nil
}
