package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"quartet/pkg/authority"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// CertsCommand returns `quartet certs`.
func CertsCommand(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "certs", Short: "Certificates: create and inspect them", Aliases: []string{"cert"},
		Long: `Create an authority and certificates for an installation that has none, without
OpenSSL, and inspect certificates. No server is called.

If your organization has an authority of its own (cert-manager, Vault, step-ca), use
its certificates instead: every setting takes PEM files.`,
	})
	c.AddCommand(initCerts(s), inspectCerts(s))
	return c
}

// CertificateFile is a file that `certs init` checked or wrote.
type CertificateFile struct {
	Path string `json:"path"`
	Done string `json:"done"` // made, renewed or kept
}

// initCerts returns `quartet certs init`.
func initCerts(s *session.Session) *cobra.Command {
	cfg := authority.Config{}
	var issue, secrets []string
	var owner string
	cmd := &cobra.Command{
		Use: "init DIR", Short: "Create an authority, certificates and secrets in a directory",
		Args: input.Exactly("DIR"),
		Long: `Create an authority in DIR, and the files that --issue and --secret name:

  DIR/ca.pem             certificate of the authority; every client needs it, and
                         it is not secret
  DIR/authority/ca.key   private key of the authority: do not copy it to servers
  DIR/NAME/tls.pem       --issue NAME=HOST,HOST: a certificate for these names and
  DIR/NAME/tls.key       addresses, for servers and clients, its private key, and
  DIR/NAME/ca.pem        a copy of the authority's certificate
  DIR/PATH               --secret PATH: 64 random hex digits, the format of key-file

A repetition keeps valid files. A certificate is renewed in the last third of its
validity, when its hosts differ, and when another authority signed it. Secrets and
the authority (10 years) are never renewed. Servers of Quartet load renewed files
by themselves; NATS servers need a signal (nats-server --signal reload).`,
		Example: `  quartet certs init ./certs --issue server=quartet.example.com,127.0.0.1,localhost
  quartet certs init ./certs --issue nats=nats-1,nats-2,nats-3 --issue runner-1
  quartet dev --grpc-addr :7481 --tls-cert-file certs/server/tls.pem --tls-key-file certs/server/tls.key`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Dir, cfg.Now, cfg.Owner, cfg.Group = args[0], s.Now, -1, -1
			if owner != "" {
				var err error
				if cfg.Owner, cfg.Group, err = ownerOf(owner); err != nil {
					return err
				}
			}
			done, err := createFiles(cfg, issue, secrets)
			return errors.Join(showFiles(s, cmd, done), err)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&issue, "issue", nil, "A certificate, as NAME=HOST,HOST; NAME alone is a client's certificate; "+
		"may be repeated")
	fl.StringArrayVar(&secrets, "secret", nil, "A file in DIR with 64 random hex digits; may be repeated")
	fl.IntVar(&cfg.Days, "days", authority.DefaultDays, fmt.Sprintf("Validity of certificates in days, 1 to %d",
		authority.MaxDays))
	fl.StringVar(&owner, "owner", "", "Owner of the files, as UID:GID (default: this user)")
	return cmd
}

// createFiles opens the authority and creates the certificates and secrets. After an
// error it returns the files that were handled before.
func createFiles(cfg authority.Config, issue, secrets []string) (out []CertificateFile, err error) {
	if cfg.Days == 0 {
		return nil, exit.UsageError("--days 0: must be at least 1")
	}
	a, err := authority.Open(cfg)
	if err != nil {
		return nil, exit.UsageError(err.Error())
	}
	out = append(out, CertificateFile{filepath.Join(cfg.Dir, "ca.pem"), a.Done})
	for _, spec := range issue {
		name, list, _ := strings.Cut(spec, "=")
		var hosts []string
		for h := range strings.SplitSeq(list, ",") {
			if h = strings.TrimSpace(h); h != "" && !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
		action, err := a.Issue(name, hosts)
		if err != nil {
			return out, exit.UsageError(err.Error())
		}
		out = append(out, CertificateFile{filepath.Join(cfg.Dir, name, "tls.pem"), action})
	}
	for _, name := range secrets {
		action, err := a.Secret(name)
		if err != nil {
			return out, exit.UsageError(err.Error())
		}
		out = append(out, CertificateFile{filepath.Join(cfg.Dir, name), action})
	}
	return out, nil
}

// ownerOf parses UID:GID.
func ownerOf(text string) (uid, gid int, err error) {
	u, g, found := strings.Cut(text, ":")
	if uid, err = strconv.Atoi(u); err == nil && found {
		gid, err = strconv.Atoi(g)
	}
	if err != nil || !found || uid < 0 || gid < 0 {
		return 0, 0, exit.UsageError(fmt.Sprintf("--owner %q: must be UID:GID, such as 65532:65532", text))
	}
	return uid, gid, nil
}

// showFiles prints what was done with each file.
func showFiles(s *session.Session, cmd *cobra.Command, files []CertificateFile) error {
	if s.JSON() {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string][]CertificateFile{"files": files})
	}
	p := output.New(cmd.OutOrStdout())
	for _, d := range files {
		p.Printf("%-8s %s\n", d.Done, terminal.Printable(d.Path))
	}
	return p.Err()
}

// inspectCerts returns `quartet certs show`.
func inspectCerts(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "show FILE...", Short: "Show what certificates contain: names, hosts, signer and expiry",
		Args: input.AtLeast("FILE"),
		Long: `Show the first certificate of each PEM file. A directory stands for the *.pem files
in it and one level below. The exit code is 1 if a certificate has expired.`,
		Example: "  quartet certs show ./certs\n  quartet certs show server.pem -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			var inspected []authority.Seen
			for _, arg := range args {
				files, err := pemFiles(arg)
				if err != nil {
					return err
				}
				for _, file := range files {
					c, err := authority.Look(file)
					if err != nil {
						return err
					}
					inspected = append(inspected, c)
				}
			}
			return showCerts(s, cmd, inspected)
		},
	}
}

// pemFiles returns path itself, or the *.pem files of a directory and of the directories
// in it.
func pemFiles(path string) ([]string, error) {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, exit.UsageError(err.Error())
	}
	if err != nil || !fi.IsDir() {
		return []string{path}, err
	}
	direct, _ := filepath.Glob(filepath.Join(path, "*.pem")) // these patterns are valid
	below, _ := filepath.Glob(filepath.Join(path, "*", "*.pem"))
	return append(direct, below...), nil
}

// showCerts prints certificates. It returns an error that ends the command with code 1
// if one has expired.
func showCerts(s *session.Session, cmd *cobra.Command, inspected []authority.Seen) error {
	expired := false
	for _, c := range inspected {
		expired = expired || !s.Now().Before(c.NotAfter)
	}
	var err error
	if s.JSON() {
		err = json.NewEncoder(cmd.OutOrStdout()).Encode(map[string][]authority.Seen{"certificates": inspected})
	} else {
		p := output.New(cmd.OutOrStdout())
		var rows [][]string
		for _, c := range inspected {
			until := c.NotAfter.Format(time.RFC3339)
			if !s.Now().Before(c.NotAfter) {
				until += " (expired)"
			}
			rows = append(rows, []string{c.File, c.Name, until, c.SignedBy, strings.Join(c.Hosts, ", ")})
		}
		p.Table("no certificates", []string{"FILE", "NAME", "VALID UNTIL", "SIGNED BY", "HOSTS"}, rows)
		err = p.Err()
	}
	if err == nil && expired {
		return exit.Silently(exit.Failed)
	}
	return err
}
