// Package confine runs untrusted commands.
//
// A Sandbox confines all commands of one owner. For each sandbox there is one helper, a second process
// of this program, which applies the limits to itself once and then starts the commands, so that a command
// costs little more than a fork.
// What a command may reach:
//
//   - Files: the writable directories of its Policy, a home and a temporary directory of its
//     own, and read-only the programs and libraries of the system. It cannot open any other
//     file.
//   - Processes: those of its sandbox.
//   - Network: see Network.
//   - Privileges: none, not even through programs with a set-user-ID bit.
//
// # Linux
//
// Two independent mechanisms enforce a policy. Namespaces (user, mount, process, IPC and,
// unless the policy allows the whole network, network) give a sandbox its own view of the
// machine. Landlock and a system call filter then limit what its commands may do in it, even
// if a command can leave a namespace. Where a host refuses user namespaces, as containers often
// do, Landlock and the filter alone remain, which Level reports: other processes are visible
// then, though neither readable nor killable; Unix domain sockets are refused; and only the
// networks NetworkNone and NetworkAll are available.
//
// Every process of a sandbox is killed when the program that opened it ends.
//
// # Other systems
//
// Open returns ErrUnavailable.
package confine
