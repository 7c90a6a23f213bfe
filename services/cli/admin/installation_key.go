package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/keyfile"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/retry"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// learnTerm is how long rotate waits for the processes to read the changed file. One that was
// killed counts as running for a minute.
const learnTerm = 2 * time.Minute

// ring is what the commands of `quartet installation-key` share.
type ring struct {
	session *session.Session
	path    string // the flag --key-file
	force   bool
	acting  bool // one of these commands runs, so the credential is made with the key file
}

// InstallationKeyCommand returns `quartet installation-key`. Its commands act as the installation's
// admin with the key file, so it wraps s.Credential.
func InstallationKeyCommand(s *session.Session) *cobra.Command {
	r := &ring{session: s}
	c := input.Group(&cobra.Command{
		Use: "installation-key", Short: "The keys of the installation: list, rotate, retire",
		Long: `List and change the keys in the installation's key file (--key-file of the
servers, by default DATA-DIR/key). Servers sign the credentials of runs and of
themselves with the active key, and derive from it the secrets of API keys and of
triggers; every key in the file verifies. Servers read a changed file within a
second, without a restart.

Where all servers use the same file, rotate is all that is needed. Where machines
have copies of it: run add, copy the file to every machine, run activate, which
refuses while a running server does not know the new key, and copy the file again.

These commands run where the file is, as a user who can write it, and act as the
installation's admin with it.`,
	})
	c.PersistentFlags().StringVar(&r.path, "key-file", "", "The key file (default $QUARTET_KEY_FILE, or key in "+
		"$QUARTET_DATA_DIR or ~/.quartet)")
	c.AddCommand(r.list(), r.add(), r.activate(), r.rotate(), r.retire())
	others := s.Credential
	s.Credential = func() (string, error) {
		switch {
		case r.acting:
			return bootstrapToken(r.path, 2*learnTerm+bootstrapTerm)
		case others != nil:
			return others()
		}
		return "", nil
	}
	return c
}

// connected is session.Connected with the key file as the credential.
func (r *ring) connected(do func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		r.acting = true
		return r.session.Connected(do)(cmd, args)
	}
}

// update changes the key file.
func (r *ring) update(change func(keyfile.Ring) (keyfile.Ring, error)) (keyfile.Ring, error) {
	path, err := keyFilePath(r.path)
	if err != nil {
		return keyfile.Ring{}, err
	}
	return keyfile.Update(path, change)
}

// load reads the key file.
func (r *ring) load() (keyfile.Ring, error) {
	path, err := keyFilePath(r.path)
	if err != nil {
		return keyfile.Ring{}, err
	}
	return keyfile.Load(path)
}

// show prints the keys, never their secrets.
func (r *ring) show(cmd *cobra.Command, keys keyfile.Ring, processes []*identityv1.Process) error {
	type key struct {
		ID      string        `json:"id"`
		State   keyfile.State `json:"state"`
		Created string        `json:"created,omitempty"`
		Of      []string      `json:"known_to"`
	}
	var all []key
	var rows [][]string
	for _, k := range keys.Keys() {
		created := ""
		if !k.Created.IsZero() {
			created = k.Created.Format(time.RFC3339)
		}
		known := slices.Concat([]string{},
			namesOf(processes, func(p *identityv1.Process) bool {
				return slices.Contains(p.GetInstallationKeyIds(), k.ID)
			}))
		all = append(all, key{k.ID, k.State, created, known})
		count := ""
		if len(processes) > 0 {
			count = fmt.Sprintf("%d of %d", len(known), len(processes))
		}
		rows = append(rows, []string{k.ID, string(k.State), created, count})
	}
	if r.session.JSON() {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"keys": all, "processes": len(processes)})
	}
	p := output.New(cmd.OutOrStdout())
	p.Table("", []string{"KEY", "STATE", "CREATED", "KNOWN TO PROCESSES"}, rows)
	return p.Err()
}

// list returns `quartet installation-key list`.
func (r *ring) list() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the keys, and how many servers know each", Args: input.None, Aliases: []string{"ls"},
		Example: "  quartet installation-key list --key-file /var/lib/quartet/key",
		RunE: r.connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
			keys, err := r.load()
			if err != nil {
				return err
			}
			processes, err := running(cmd.Context(), conn)
			if err != nil {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "The running processes are not known: %v\n", err)
			}
			return r.show(cmd, keys, processes)
		}),
	}
}

// add returns `quartet installation-key add`.
func (r *ring) add() *cobra.Command {
	return &cobra.Command{
		Use: "add", Short: "Add a key that verifies and does not sign yet", Args: input.None,
		Long: "Add a new pending key to the file, the first step of a rotation where machines have copies\nof it. " +
			"Copy the file to every machine, then run activate.",
		Example: "  quartet installation-key add --key-file /srv/quartet/key",
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := r.update(func(keys keyfile.Ring) (keyfile.Ring, error) { return keys.Add(r.session.Now()) })
			if err != nil {
				return err
			}
			return r.show(cmd, keys, nil)
		},
	}
}

// activate returns `quartet installation-key activate`.
func (r *ring) activate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "activate KEY", Short: "Let the servers sign with a key that all of them know", Args: input.Exactly("KEY"),
		Long: `Make a key the active one. It is refused while a running server does not know the
key, and names those servers.`,
		Example: "  quartet installation-key activate 1f0a52c3",
	}
	cmd.Flags().BoolVar(&r.force, "force", false,
		"Do not ask which servers know the key, for example because none runs")
	cmd.RunE = r.connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		keys, err := r.load()
		if err != nil {
			return err
		}
		if _, err := keys.Activate(args[0]); err != nil {
			return exit.UsageError(err.Error())
		}
		var processes []*identityv1.Process
		if !r.force {
			if processes, err = r.known(cmd.Context(), conn, args[0]); err != nil {
				return err
			}
		}
		keys, err = r.update(func(keys keyfile.Ring) (keyfile.Ring, error) { return keys.Activate(args[0]) })
		if err != nil {
			return err
		}
		return r.show(cmd, keys, processes)
	})
	return cmd
}

// known returns the running processes, and an error that names those that do not know a key.
func (r *ring) known(ctx context.Context, conn *grpc.ClientConn, id string) ([]*identityv1.Process, error) {
	processes, err := running(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("which servers know key %s cannot be checked, so nothing was activated (--force "+
			"activates it all the same): %s", id, err.Error())
	}
	if missing := ignorant(processes, id); len(missing) > 0 {
		return nil, fmt.Errorf("%d of %d running servers do not know key %s yet, and would refuse what it signs; "+
			"copy the key file to them, then run activate %s: %s",
			len(missing), len(processes), id, id, strings.Join(missing, "; "))
	}
	return processes, nil
}

// rotate returns `quartet installation-key rotate`.
func (r *ring) rotate() *cobra.Command {
	wait := learnTerm
	cmd := &cobra.Command{
		Use: "rotate", Short: "Add a key, wait until all servers know it, and activate it", Args: input.None,
		Long: `Replace the active key by a new one, where all servers use the same key file. The key
is added, then activated when every running server has read it, so that no server
signs what another one refuses. The previous key stays in the file and verifies
what it signed. If the command is interrupted, run it again: it continues with the
key that it added.

Credentials of open turns, API keys, trigger URLs and signing secrets stay valid. When
the previous key is not needed any more, retire it.`,
		Example: "  quartet installation-key rotate\n  quartet installation-key rotate --key-file " +
			"/var/lib/quartet/key --address quartet.example.com:7481 --tls",
	}
	cmd.Flags().BoolVar(&r.force, "force", false, "Do not wait for servers, because none runs")
	cmd.Flags().DurationVar(&wait, "wait", learnTerm, "How long to wait until all servers know the new key")
	cmd.RunE = r.connected(func(cmd *cobra.Command, conn *grpc.ClientConn, _ []string) error {
		if !r.force {
			// Nothing changes unless the installation's servers can be asked.
			if _, err := running(cmd.Context(), conn); err != nil {
				return fmt.Errorf("the running servers cannot be asked, so the key file was not changed (--force "+
					"rotates if no server runs): %s", err.Error())
			}
		}
		keys, err := r.update(func(keys keyfile.Ring) (keyfile.Ring, error) {
			if _, ok := keys.Pending(); ok {
				return keys, nil
			}
			return keys.Add(r.session.Now())
		})
		if err != nil {
			return err
		}
		next, _ := keys.Pending()
		var processes []*identityv1.Process
		if !r.force {
			if processes, err = r.await(cmd.Context(), conn, wait, next.ID, func(ps []*identityv1.Process) []string {
				return ignorant(ps, next.ID)
			}); err != nil {
				return fmt.Errorf("key %s was added, and the previous one is still the active one: %s; give them the "+
					"file and run the command again", next.ID, err.Error())
			}
		}
		keys, err = r.update(func(keys keyfile.Ring) (keyfile.Ring, error) { return keys.Activate(next.ID) })
		if err != nil {
			return err
		}
		if !r.force {
			signs := func(p *identityv1.Process) bool { return p.GetActiveInstallationKeyId() != next.ID }
			if processes, err = r.await(cmd.Context(), conn, wait, next.ID, func(ps []*identityv1.Process) []string {
				return namesOf(ps, signs)
			}); err != nil {
				return fmt.Errorf("key %s is active: %s", next.ID, err.Error())
			}
		}
		return r.show(cmd, keys, processes)
	})
	return cmd
}

// await calls behind with the running processes until it returns no name of one that is behind, and then
// returns the processes. After the time wait it returns an error with the names that behind returned last.
func (r *ring) await(ctx context.Context, conn *grpc.ClientConn, wait time.Duration, id string,
	behind func([]*identityv1.Process) []string,
) ([]*identityv1.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var last error
	for pacer := retry.New(100*time.Millisecond, time.Second); ; {
		processes, err := running(ctx, conn)
		switch {
		case err != nil:
			if last == nil {
				last = err
			}
		default:
			late := behind(processes)
			if len(late) == 0 {
				return processes, nil
			}
			last = fmt.Errorf("after %s, %d of %d running servers do not use key %s: %s", wait, len(late),
				len(processes), id, strings.Join(late, "; "))
		}
		if pacer.Wait(ctx) != nil {
			return nil, last
		}
	}
}

// retire returns `quartet installation-key retire`.
func (r *ring) retire() *cobra.Command {
	cmd := &cobra.Command{
		Use: "retire KEY", Short: "Remove an old or a pending key", Args: input.Exactly("KEY"),
		Long: `Remove a key from the file. What it signed is refused from then on, and long calls
that such credentials opened end:

  - credentials of turns and of workers' runs that began before the rotation
  - signatures of deliveries to triggers that were created or rotated before it,
    unless they have been rotated since; their URLs stay valid
  - repeated requests for the secret of a key or a trigger of before it
  - backups that were made before it: keep a copy of the key file for them

API keys stay valid. If the key has leaked, revoke those that were created under it
("quartet key list -o json" names each one's key of the installation) and rotate the triggers: their
secrets can be computed from it.

It is refused while a running server signs with the key.`,
		Example: "  quartet installation-key retire 9c41d7e0",
	}
	cmd.Flags().BoolVar(&r.force, "force", false, "Do not ask whether a server signs with the key, for example "+
		"because none runs")
	cmd.RunE = r.connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		keys, err := r.load()
		if err != nil {
			return err
		}
		if _, err := keys.Retire(args[0]); err != nil {
			return exit.UsageError(err.Error())
		}
		if !r.force {
			processes, err := running(cmd.Context(), conn)
			if err != nil {
				return fmt.Errorf("whether a server signs with key %s cannot be checked, so nothing was retired "+
					"(--force retires it all the same): %s", args[0], err.Error())
			}
			signs := func(p *identityv1.Process) bool { return p.GetActiveInstallationKeyId() == args[0] }
			if late := namesOf(processes, signs); len(late) > 0 {
				return fmt.Errorf("%d running servers sign with key %s; give them the file in which another one is "+
					"active: %s", len(late), args[0], strings.Join(late, "; "))
			}
		}
		keys, err = r.update(func(keys keyfile.Ring) (keyfile.Ring, error) { return keys.Retire(args[0]) })
		if err != nil {
			return err
		}
		return r.show(cmd, keys, nil)
	})
	return cmd
}

// The errors of running are part of other errors as text: as a cause, an error of the server would be
// reported in place of what became of the command.

// errNoProcess is the error of running while no process has reported itself.
var errNoProcess = errors.New("no server has reported itself yet")

// running returns the running server processes of the installation.
func running(ctx context.Context, conn *grpc.ClientConn) ([]*identityv1.Process, error) {
	resp, err := identityv1.NewIdentityServiceClient(conn).ListProcesses(ctx, &identityv1.ListProcessesRequest{})
	if err != nil {
		return nil, err
	}
	if len(resp.GetProcesses()) == 0 {
		return nil, errNoProcess
	}
	return resp.GetProcesses(), nil
}

// ignorant returns the names of the processes that do not know a key.
func ignorant(all []*identityv1.Process, id string) []string {
	return namesOf(all, func(p *identityv1.Process) bool { return !slices.Contains(p.GetInstallationKeyIds(), id) })
}

// namesOf returns the names of the processes for which which is true: the services, and where.
func namesOf(all []*identityv1.Process, which func(*identityv1.Process) bool) []string {
	var names []string
	for _, p := range all {
		if which(p) {
			names = append(names, fmt.Sprintf("%s of %s (%s)", p.GetAddress(), p.GetHost(),
				strings.Join(p.GetServices(), " ")))
		}
	}
	return names
}
