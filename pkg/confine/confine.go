package confine

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// ErrUnavailable is wrapped by the errors of Open that mean that this system cannot enforce the
// policy.
var ErrUnavailable = errors.New("commands cannot be confined on this system")

// Network says which network a command reaches.
type Network string

// The networks. In each a command has a loopback interface, which it shares with the other
// commands of its sandbox, except for NetworkAll, where that is the host's.
const (
	// NetworkNone is no network.
	NetworkNone Network = "none"
	// NetworkOutside reaches every address except those of this host, and resolves names with the
	// name servers of this host. It refuses link-local addresses too, where clouds serve credentials.
	NetworkOutside Network = "outside"
	// NetworkAll is the network of the host, including servers on its loopback interface.
	NetworkAll Network = "all"
)

// ParseNetwork returns the network of a name.
func ParseNetwork(name string) (Network, error) {
	switch n := Network(name); n {
	case NetworkNone, NetworkOutside, NetworkAll:
		return n, nil
	default:
		return "", fmt.Errorf("network %q: must be none, outside or all", name)
	}
}

// Level says what confines the commands of a sandbox.
type Level string

// The levels.
const (
	// LevelNamespaces: namespaces, Landlock and a system call filter.
	LevelNamespaces Level = "namespaces"
	// LevelLandlock: Landlock and a system call filter.
	LevelLandlock Level = "landlock"
)

// Policy says what the commands of a sandbox may reach. All paths are absolute and without
// symbolic links, and exist.
type Policy struct {
	// Dir holds the sandbox's home and its temporary directory. It is created if it does
	// not exist, and kept.
	Dir string
	// Writable are directories that commands may read, write and execute.
	Writable []string
	// Readable are files and directories that commands may read and execute, in addition to those
	// of the system. Those that do not exist are ignored.
	Readable []string
	// Hidden are files and directories that commands must not reach, although they are inside
	// of directories that commands may use. They need not exist. Of what commands only read, an open sandbox
	// never shows what appears at these paths or in the directories that lead to them. In Writable, what is
	// replaced or created at one of these paths is hidden before the next command starts, and within a tenth of a
	// second while commands run: a file that may be replaced belongs into a hidden directory. At LevelLandlock nothing
	// can be hidden: Open returns an error if one of them exists inside of a directory that commands may read or write,
	// and a sandbox ends within a tenth of a second when one appears there.
	Hidden []string
	// Fixed are directories in Writable in which commands cannot make, remove or rename an entry. Those that exist when
	// the sandbox is opened are writable as everything in Writable is.
	Fixed []string
	// ReadOnly are files and directories in Writable that commands can read and not change, replace or move. At
	// LevelLandlock that holds only for entries of Fixed.
	ReadOnly []string
	// Network is the network that commands reach. Required.
	Network Network
	// Level is the level to open; empty: LevelNamespaces, or LevelLandlock if that fails and
	// Network is not NetworkOutside.
	Level Level
}

// Spec describes a process to start.
type Spec struct {
	// Argv is the program and its arguments. A name without a slash is looked up in the PATH
	// of Env.
	Argv []string
	Env  []string
	Dir  string
	// Files are stdin, stdout and stderr. They remain open and belong to the caller.
	Files [3]*os.File
	// Terminal makes the process the leader of a session whose terminal is its stdin;
	// otherwise it leads a process group of its own.
	Terminal bool
	// Mark is the soft RLIMIT_RTTIME of the process; see package proctree. 0: unchanged.
	Mark uint64
}

// Home returns the home directory of a sandbox whose Policy.Dir is dir.
func Home(dir string) string { return dir + "/home" }

// Temp returns the temporary directory of a sandbox whose Policy.Dir is dir.
func Temp(dir string) string { return dir + "/tmp" }

// beneath reports whether a clean path is dir or below it.
func beneath(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
