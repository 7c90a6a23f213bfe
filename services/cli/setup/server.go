package setup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/terminal"
	"quartet/services/cli/local"
	"quartet/services/cli/session"
)

// server is what was found where the settings look for a server.
type server struct {
	Address string `json:"address"`
	Status  string `json:"status"` // answers, starts (none does, and quartet mcp starts one), missing
	// Others are the gRPC addresses of other servers of this user that run, if none answers at Address.
	Others []string `json:"others,omitempty"`
}

// find looks whether a server answers at the session's address, and otherwise where one of this user does.
func find(s *session.Session, cmd *cobra.Command, listens func() string) (server, error) {
	if err := s.Load(); err != nil {
		return server{}, err
	}
	at := server{Address: s.Address(), Status: "missing"}
	err := s.WithConnection(func(conn *grpc.ClientConn) error {
		if local.Answers(cmd.Context(), conn) {
			at.Status = "answers"
		}
		return nil
	})
	if err != nil || at.Status == "answers" {
		return at, err
	}
	at.Others = slices.DeleteFunc(local.Servers(cmd.Context()), func(other string) bool { return other == at.Address })
	if len(at.Others) == 0 && listens != nil && at.Address == listens() && !s.HasToken() && !s.UsesTLS() &&
		local.Loopback(at.Address) {
		at.Status = "starts"
	}
	return at, nil
}

// warning says what to do if no server answers; "" if one does.
func (at server) warning(cmd *cobra.Command, t tool) string {
	address := terminal.Printable(at.Address)
	start := client.StartCommand(at.Address)
	switch {
	case at.Status == "answers" || at.Address == "":
		return ""
	case len(at.Others) > 0:
		return fmt.Sprintf("warning: no server answers at %s; one of yours runs at %s. To use it: %s", address,
			strings.Join(at.Others, ", "), again(cmd, t, at.Others[0]))
	case at.Status == "starts":
		return fmt.Sprintf("No server answers at %s yet: quartet mcp starts one when a session begins, or you do: %s",
			address, start)
	case start != "":
		return fmt.Sprintf("warning: no server answers at %s. Start one: %s", address, start)
	}
	return fmt.Sprintf("warning: no server answers at %s. Start it there, or give another --address.", address)
}

// again returns the command line of setup with the flags that say what is entered, for a shell. address replaces the
// one that was given; "" keeps that.
func again(cmd *cobra.Command, t tool, address string) string {
	words := []string{"quartet", "setup", t.name}
	for _, name := range []string{"user", "agent", "dir", "address"} {
		f := cmd.Flag(name)
		switch {
		case name == "address" && address != "":
			words = append(words, "--address", quoteShell(address))
		case f == nil || !f.Changed:
		case name == "user":
			words = append(words, "--user="+f.Value.String())
		default:
			words = append(words, "--"+name, quoteShell(f.Value.String()))
		}
	}
	return strings.Replace(strings.Join(words, " "), "--user=true", "--user", 1)
}
