package admin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/keyfile"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// bootstrapTerm is how long the credential of --bootstrap is valid: long enough for one
// command.
const bootstrapTerm = time.Minute

// KeyCommand returns `quartet key`. It sets s.Credential to the credential of --bootstrap,
// which only the commands below it have.
func KeyCommand(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "key", Short: "API keys: credentials of people and programs", Aliases: []string{"keys"},
		Long: `Create, list and revoke the API keys of people and programs. It takes the role
admin.

A server that other machines can reach demands a credential on every call. The
first key is created with --bootstrap, by a user who can read the installation's
key file.`,
	})
	c.AddCommand(createKey(s), revokeKey(s), listKeys(s), getKey(s))
	flags := c.PersistentFlags()
	var bootstrap bool
	var keyFile string
	flags.BoolVar(&bootstrap, "bootstrap", false,
		"Act as the installation's admin, with its key file instead of an API key")
	flags.StringVar(&keyFile, "key-file", "", "With --bootstrap: the key file (default $QUARTET_KEY_FILE, or key in "+
		"$QUARTET_DATA_DIR or ~/.quartet)")
	s.Credential = func() (string, error) {
		if !bootstrap {
			return "", nil
		}
		return bootstrapToken(keyFile, bootstrapTerm)
	}
	return c
}

// createKey returns `quartet key create`.
func createKey(s *session.Session) *cobra.Command {
	req := &identityv1.CreateKeyRequest{}
	var role, expires string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a key and print its secret, which is shown only now",
		Args: input.Exactly("NAME"),
		Long: `Create a key for a person or a program. NAME is its principal, which every event
that it causes records. Roles: installation_admin, admin, operator, runner, agent (with --agent),
worker, integration. The server stores only a hash of the secret. A key can be
limited to some agents, so that it acts for these only, and to some tools, so
that it calls these and nothing else.`,
		Example: `  quartet key create --bootstrap root --role installation_admin
  quartet key create ci --role operator --namespace acme --expires 90d
  quartet key create runner-1 --role runner --namespace acme -o json
  quartet key create keeper-mcp --role agent --agent keeper --tools ListWorkItems,CompleteWorkItem
  quartet key create ci-keeper --role operator --agents keeper,reviewer`,
	}
	cmd.Flags().StringVar(&role, "role", "", "The role, which determines what the key allows (required)")
	input.EnumChoices[identityv1.Role](cmd, "role")
	cmd.Flags().StringVar(&req.Namespace, "namespace", "", "The namespace of the key (default: the caller's)")
	cmd.Flags().StringVar(&req.AgentId, "agent", "", "The agent that a key of role agent acts as")
	cmd.Flags().StringSliceVar(&req.AgentIds, "agents", nil, "Limit a key of role operator, runner or integration to "+
		"these agents, at most 20")
	cmd.Flags().StringSliceVar(&req.Tools, "tools", nil,
		"Limit a key of role operator or agent to these tools, at most 50")
	cmd.Flags().StringVar(&expires, "expires", "", "Let it expire after this duration, such as 90d (default: never)")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		if role == "" {
			return exit.UsageError("--role is missing; use installation_admin, admin, operator, runner, agent, " +
				"worker or integration")
		}
		var err error
		if req.Role, err = input.Enum[identityv1.Role]("role", role); err != nil {
			return err
		}
		if req.ExpiresAfter, err = input.Duration("expires", expires); err != nil {
			return err
		}
		req.Name, req.RequestId = args[0], s.RequestID
		resp, err := identityv1.NewIdentityServiceClient(conn).CreateKey(cmd.Context(), req)
		if err != nil {
			return err
		}
		err = s.Show(cmd, resp, func(p *output.Printer) { p.Printf("%s\n", resp.GetSecret()) })
		if !s.JSON() {
			// On stderr, so that stdout is the secret and nothing else.
			k, e := resp.GetKey(), output.New(cmd.ErrOrStderr()).InUTC(s.Zone() == time.UTC)
			e.Printf("%s authenticates %s as %s of namespace %s%s. The secret is shown only now.\n", k.GetKeyId(),
				k.GetName(), pbjson.EnumText(k.GetRole()), k.GetNamespace(), until(e, k))
		}
		return err
	})
	return s.Mutation(cmd)
}

// until describes when a key expires; "" if it does not.
func until(p *output.Printer, k *identityv1.Key) string {
	if k.GetExpiresAt() == nil {
		return ""
	}
	return " until " + p.Time(k.GetExpiresAt())
}

// revokeKey returns `quartet key revoke`.
func revokeKey(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke KEY", Short: "Revoke a key, and end the streams that it opened", Args: input.Exactly("KEY"),
		Long:    "Revoke a key, named by its id (key_…) or by its secret, for example a leaked one.",
		Example: "  quartet key revoke key_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = session.Call(s, identityv1.NewIdentityServiceClient, identityv1.IdentityServiceClient.RevokeKey,
		func(args []string) (*identityv1.RevokeKeyRequest, error) {
			return &identityv1.RevokeKeyRequest{KeyId: keyID(args[0]), RequestId: s.RequestID}, nil
		},
		func(p *output.Printer, resp *identityv1.RevokeKeyResponse) {
			p.Printf("%s %s\n", resp.GetKey().GetKeyId(), pbjson.EnumText(resp.GetKey().GetStatus()))
		})
	return s.Mutation(cmd)
}

// keyID returns the id of a key that is named by its id or by its secret, which
// contains the id. So whoever finds a leaked secret can have the key revoked.
func keyID(text string) string {
	if rest, ok := strings.CutPrefix(text, "qk_"); ok {
		id, _, _ := strings.Cut(rest, "_")
		return "key_" + id
	}
	return text
}

// listKeys returns `quartet key list`.
func listKeys(s *session.Session) *cobra.Command {
	req := &identityv1.ListKeysRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the keys", Args: input.None, Aliases: []string{"ls"},
		Example: "  quartet key list --namespace acme --all",
	}
	cmd.Flags().StringVar(&req.Namespace, "namespace", "", "Only keys of this namespace")
	cmd.Flags().BoolVar(&req.IncludeEnded, "all", false, "Include revoked and expired ones")
	return session.List(s, cmd, identityv1.NewIdentityServiceClient, identityv1.IdentityServiceClient.ListKeys,
		func(_ []string) (*identityv1.ListKeysRequest, error) {
			return req, nil
		},
		(*identityv1.ListKeysResponse).GetKeys, "no keys",
		[]string{"KEY", "NAMESPACE", "ROLE", "NAME", "STATUS", "CREATED", "EXPIRES", "LAST USED"},
		func(p *output.Printer, k *identityv1.Key) []string {
			return []string{
				k.GetKeyId(), k.GetNamespace(), pbjson.EnumText(k.GetRole()), k.GetName(),
				pbjson.EnumText(k.GetStatus()), p.Time(k.GetCreatedAt()), p.Time(k.GetExpiresAt()),
				p.Time(k.GetLastUsedAt()),
			}
		}, session.Hidden(&req.IncludeEnded))
}

// getKey returns `quartet key get`.
func getKey(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "get KEY", Short: "Show a key, without its secret", Args: input.Exactly("KEY"),
		Example: "  quartet key get key_01h455vb4pex5vsknk084sn02q",
		RunE: session.Call(s, identityv1.NewIdentityServiceClient, identityv1.IdentityServiceClient.GetKey,
			func(args []string) (*identityv1.GetKeyRequest, error) {
				return &identityv1.GetKeyRequest{KeyId: keyID(args[0])}, nil
			},
			func(p *output.Printer, resp *identityv1.GetKeyResponse) {
				k := resp.GetKey()
				p.Printf("%s  %s  %s of %s as %q\n", k.GetKeyId(), pbjson.EnumText(k.GetStatus()),
					pbjson.EnumText(k.GetRole()), k.GetNamespace(), k.GetName())
				for _, row := range [][2]string{
					{"agent", k.GetAgentId()},
					{"agents", strings.Join(k.GetAgentIds(), ", ")},
					{"tools", strings.Join(k.GetTools(), ", ")},
					{"created", stamp(p.Time(k.GetCreatedAt()), k.GetCreatedBy())},
					{"expires", p.Time(k.GetExpiresAt())},
					{"revoked", stamp(p.Time(k.GetRevokedAt()), k.GetRevokedBy())},
					{"last used", p.Time(k.GetLastUsedAt())},
				} {
					if row[1] != "" {
						p.Printf("  %-10s %s\n", row[0], row[1])
					}
				}
			}),
	}
}

// stamp joins a time and who acted then.
func stamp(at, by string) string {
	if at == "" || by == "" {
		return at
	}
	return at + " by " + by
}

// WhoAmICommand returns `quartet whoami`.
func WhoAmICommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show as whom the server authenticates you", Args: input.None,
		Example: "  QUARTET_TOKEN_FILE=~/.quartet/token quartet whoami",
		RunE: session.Call(s, identityv1.NewIdentityServiceClient, identityv1.IdentityServiceClient.WhoAmI,
			func(_ []string) (*identityv1.WhoAmIRequest, error) {
				return &identityv1.WhoAmIRequest{}, nil
			},
			func(p *output.Printer, resp *identityv1.WhoAmIResponse) {
				p.Printf("%s, %s of namespace %s\n", resp.GetPrincipal(), pbjson.EnumText(resp.GetRole()),
					resp.GetNamespace())
				for _, limit := range [][2]string{
					{"agents", strings.Join(resp.GetAgentIds(), ", ")},
					{"tools", strings.Join(resp.GetTools(), ", ")},
				} {
					if limit[1] != "" {
						p.Printf("  only %-6s %s\n", limit[0], limit[1])
					}
				}
			}),
	}
}

// bootstrapToken returns a credential of an admin of the installation, valid for term, made with the
// installation's key in the file path; "" is the default file. It gives no new power: whoever
// can read that file can make any credential.
func bootstrapToken(path string, term time.Duration) (string, error) {
	path, err := keyFilePath(path)
	if err != nil {
		return "", err
	}
	ring, err := keyfile.Load(path)
	if err != nil {
		return "", exit.UsageError(fmt.Sprintf("--bootstrap: %v; run this where the server's data-dir is, as its "+
			"user, or give --key-file", err))
	}
	return rpc.KeyringOf(keyfile.Fixed(ring), false).MintUntil(
		rpc.Actor{Namespace: rpc.DefaultNamespace, Principal: "bootstrap", Role: rpc.RoleInstallationAdmin},
		time.Now().Add(term)), nil
}

// keyFilePath returns the path of the installation's key file: path, or if that is "" $QUARTET_KEY_FILE, or else the
// file key in $QUARTET_DATA_DIR or ~/.quartet.
func keyFilePath(path string) (string, error) {
	if path == "" {
		path = os.Getenv("QUARTET_KEY_FILE")
	}
	if path != "" {
		return path, nil
	}
	dir := os.Getenv("QUARTET_DATA_DIR")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", exit.UsageError("the key file is unknown: " + err.Error() + "; give --key-file")
		}
		dir = filepath.Join(home, ".quartet")
	}
	return filepath.Join(dir, "key"), nil
}
