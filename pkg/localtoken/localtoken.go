package localtoken

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
)

const (
	// Prefix is how every local token begins.
	Prefix = "qlt_"
	// header is the text before the token in a file.
	header = "Authorization: Bearer "
	// maxFile is the size of the largest file that Read accepts, in bytes.
	maxFile = 1024
	// maxSwept is how many files of the directory Publish, Others and Running look at.
	maxSwept = 1000
)

// Dir returns the directory of this user's token files: quartet in $XDG_STATE_HOME, or else in
// ~/.local/state, where ~ is $HOME. Where neither variable is set, as for some services of a
// machine, it is quartet-<uid> in the system's directory for temporary files. It need not exist.
func Dir() string {
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "quartet")
	}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "quartet")
	}
	return filepath.Join(os.TempDir(), "quartet-"+strconv.Itoa(os.Geteuid()))
}

// Path returns the path of the token file of a server that listens at addr, such as 127.0.0.1:7480.
// It returns "" unless addr is a loopback IP address with a port: any other address, and any name, may lead
// to another machine.
func Path(addr string) string {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().IsLoopback() || at.Port() == 0 {
		return ""
	}
	return filepath.Join(Dir(), netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()).String())
}
