package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"quartet/pkg/localtoken"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/session"
)

const (
	// commandTerm bounds a command of the service manager.
	commandTerm = time.Minute
	// maxOutput is how much of what it prints is kept for an error.
	maxOutput = 4 << 10
)

// secrets are the settings that a definition may not have: every user of the machine can read a command line.
var secrets = []string{"bootstrap-token"}

// ServiceCommand returns `quartet service`. servers has the settings of servers.
func ServiceCommand(s *session.Session, servers *pflag.FlagSet) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "service", Short: "The server of this user as a service: install, remove, show it",
	})
	c.Long = `Run "quartet dev" as a service of this user: of systemd on Linux, of launchd on macOS.
It starts when you log in, and again after it has failed.`
	c.AddCommand(installCommand(servers), removeCommand(), statusCommand(s, servers))
	return c
}

// currentManager returns the service manager of this system.
func currentManager() (manager, error) {
	switch runtime.GOOS {
	case "linux":
		return systemd(), nil
	case "darwin":
		return launchd(os.Getuid()), nil
	}
	return manager{}, fmt.Errorf("there is no service manager for %s here; start `quartet dev` with what starts "+
		"programs there", runtime.GOOS)
}

// installedPlace is a manager, and where the definition of the service is.
type installedPlace struct {
	manager
	file string
}

// servicePlace returns the manager of this system and the path of the definition.
func servicePlace() (installedPlace, error) {
	m, err := currentManager()
	if err != nil {
		return installedPlace{}, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return installedPlace{}, err
	}
	return installedPlace{m, m.path(home)}, nil
}

// installCommand returns `quartet service install`.
func installCommand(servers *pflag.FlagSet) *cobra.Command {
	var fileOnly bool
	cmd := &cobra.Command{
		Use: "install [-- FLAGS]", Short: "Install and start the service", Args: cobra.ArbitraryArgs,
		Long: `Write the definition of the service, for this program and "quartet dev" with FLAGS, and
start it. A second time it replaces the definition and starts the service again. The
server executes no commands unless FLAGS say where: --worker-roots DIR. Environment
variables do not reach it.`,
		Example: "  quartet service install\n  quartet service install -- --data-dir ~/quartet --worker-roots ~/src",
	}
	cmd.Flags().BoolVar(&fileOnly, "file-only", false, "Only write the definition")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		args, err := flagsOf(servers, args)
		if err != nil {
			return err
		}
		at, err := servicePlace()
		if err != nil {
			return err
		}
		program, err := Program()
		if err != nil {
			return err
		}
		log := filepath.Join(localtoken.Dir(), "service.log")
		if _, err := localtoken.Prepare(); err != nil {
			return err
		}
		text := at.define(program, args, log)
		old, err := os.ReadFile(at.file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := session.ReplaceFile(at.file, []byte(text), 0o644); err != nil {
			return err
		}
		cmd.PrintErrf("wrote %s\n", at.file)
		if fileOnly {
			return nil
		}
		if len(old) > 0 {
			// The service need not run, so an error means nothing.
			_ = callManager(cmd.Context(), at.unload)
		}
		if err := errors.Join(callManager(cmd.Context(), at.refresh), callManager(cmd.Context(), at.load)); err != nil {
			return fmt.Errorf("%s did not start the service: %w", at.name, err)
		}
		cmd.PrintErrf("started; see: quartet service status\n")
		if at.note != "" {
			cmd.PrintErrf("%s\n", at.note)
		}
		return nil
	}
	return cmd
}

// flagsOf returns args, the flags of the server, and adds --embedded-worker=off unless they say whether or where it
// executes commands. It refuses arguments that are no flags of the server, and secrets.
func flagsOf(servers *pflag.FlagSet, args []string) ([]string, error) {
	if err := servers.Parse(args); err != nil {
		return nil, exit.UsageError("the flags of the server: " + err.Error())
	}
	if servers.NArg() > 0 {
		return nil, exit.UsageError(fmt.Sprintf("%q is no flag of quartet dev", servers.Arg(0)))
	}
	for _, name := range secrets {
		if f := servers.Lookup(name); f != nil && f.Changed {
			return nil,
				exit.UsageError("--" + name + " may not be in the definition of a service, which others can read")
		}
	}
	changed := func(name string) bool {
		f := servers.Lookup(name)
		return f != nil && f.Changed
	}
	args = slices.Clone(args)
	if !changed("embedded-worker") && !changed("worker-roots") {
		args = append(args, "--embedded-worker=off")
	}
	return args, nil
}

// removeCommand returns `quartet service remove`.
func removeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove", Short: "Stop the service and remove its definition; the data stays", Args: input.None,
		Aliases: []string{"uninstall"},
		Example: "  quartet service remove",
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := servicePlace()
			if err != nil {
				return err
			}
			if _, err := os.Lstat(at.file); errors.Is(err, os.ErrNotExist) {
				cmd.PrintErrf("no service is installed\n")
				return nil
			}
			unloaded := callManager(cmd.Context(), at.unload)
			if err := os.Remove(at.file); err != nil {
				return err
			}
			cmd.PrintErrf("removed %s\n", at.file)
			if unloaded != nil {
				return fmt.Errorf("the definition is removed, but %s did not stop the service: %w", at.name, unloaded)
			}
			return callManager(cmd.Context(), at.refresh)
		},
	}
}

// serviceState is what `quartet service status` shows.
type serviceState struct {
	Manager   string `json:"manager"`
	File      string `json:"file"`
	Installed bool   `json:"installed"`
	// Current is false if the definition is for another program than this one.
	Current bool `json:"current"`
	Running bool `json:"running"`
	// Answers says that a server listens at Address.
	Answers bool   `json:"answers"`
	Address string `json:"address"`
}

// statusCommand returns `quartet service status`.
func statusCommand(s *session.Session, servers *pflag.FlagSet) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show whether the service is installed and runs", Args: input.None,
		Long: "Show whether the service is installed and runs. The exit code is 0 if it runs, 3 if it is not " +
			"installed, and 5 if it does not run.",
		Example: "  quartet service status",
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := servicePlace()
			if err != nil {
				return err
			}
			st := serviceState{Manager: at.name, File: at.file, Address: session.DefaultAddress}
			text, err := os.ReadFile(at.file)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if st.Installed = err == nil; st.Installed {
				link, err := Program()
				if err != nil {
					return err
				}
				program, err := os.Executable()
				if err != nil {
					return err
				}
				for _, path := range []string{link, program} {
					st.Current = st.Current || bytes.Contains(text, []byte(quoteUnit(path))) ||
						bytes.Contains(text, []byte("<string>"+escape(path)+"</string>"))
				}
				st.Running = callManager(cmd.Context(), at.active) == nil
				st.Address = addressIn(string(text), servers)
				st.Answers = Listens(cmd.Context(), st.Address)
			}
			if err := showState(s, cmd, st); err != nil {
				return err
			}
			switch {
			case !st.Installed:
				return exit.Silently(exit.NotFound)
			case !st.Running:
				return exit.Silently(exit.Unavailable)
			}
			return nil
		},
	}
}

// addressIn returns the gRPC address in a definition, or the default.
func addressIn(text string, servers *pflag.FlagSet) string {
	const name = "grpc-addr"
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \"\n<>", r) })
	for i, word := range words {
		if value, ok := strings.CutPrefix(word, "--"+name+"="); ok {
			return value
		}
		if word == "--"+name {
			for _, next := range words[i+1:] {
				if next != "/string" && next != "string" {
					return next
				}
			}
		}
	}
	if f := servers.Lookup(name); f != nil {
		return f.DefValue
	}
	return session.DefaultAddress
}

// showState prints the state.
func showState(s *session.Session, cmd *cobra.Command, st serviceState) error {
	if s.JSON() {
		raw, err := json.MarshalIndent(st, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", raw)
		}
		return err
	}
	p := s.Printer(cmd)
	if !st.Installed {
		p.Printf("no service is installed; install it with: quartet service install\n")
		return p.Err()
	}
	running, answers, program := "no", "no", ""
	if st.Running {
		running = "yes"
	}
	if st.Answers {
		answers = "yes, at " + st.Address
	}
	if !st.Current {
		program = "another one than this; quartet service install replaces it"
	}
	p.Fields("manager", st.Manager, "definition", terminal.Printable(st.File), "running", running, "answers", answers,
		"program", program)
	return p.Err()
}

// callManager runs a command of the service manager. It does nothing and returns nil if command is empty.
func callManager(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTerm)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var said limited
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		text := cmp.Or(strings.TrimSpace(string(said.text)), err.Error())
		return fmt.Errorf("%s: %s", strings.Join(command, " "), terminal.Printable(text))
	}
	return nil
}

// limited keeps the beginning of what is written to it.
type limited struct{ text []byte }

var _ io.Writer = (*limited)(nil)

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	l.text = append(l.text, p[:min(len(p), maxOutput-len(l.text))]...)
	return len(p), nil
}
