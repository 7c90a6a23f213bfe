package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/session"
)

// contextCommand returns `quartet context`.
func contextCommand(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "context", Short: "Servers under names: add, choose, list and remove them",
		Aliases: []string{"contexts"},
	})
	c.Long = `A context is a server under a name: its address, how its certificate is verified, and
the file with your credential. The current one applies to every command to which no
address is given by --address or $QUARTET_ADDRESS; $QUARTET_CONTEXT names another one
for a single command. The context "local" is the server of this user on this machine.

Contexts are in contexts.yaml in $XDG_CONFIG_HOME/quartet, or else in ~/.config/quartet,
with the mode 0600. It has no credentials, only the names of their files.`
	c.AddCommand(addContext(s), useContext(), listContexts(s), removeContext())
	return c
}

// addContext returns `quartet context add`.
func addContext(s *session.Session) *cobra.Command {
	var tokenFile string
	var use, replace bool
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Keep a server under a name", Args: input.Exactly("NAME"),
		Long: `Keep under NAME the server that --address, --tls and the other flags name, or the
variables that they stand for. Nothing is connected.`,
		Example: `  quartet context add prod --address quartet.example.com:7481 --tls --token-file ~/.quartet/prod.key
  . installation/env && quartet context add compose --use`,
	}
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "File with your credential, which only you may read "+
		"(default: $QUARTET_TOKEN_FILE)")
	cmd.Flags().BoolVar(&use, "use", false, "Use it from now on")
	cmd.Flags().BoolVar(&replace, "replace", false, "Replace a context of this name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		if err := session.CheckContextName(name); err != nil {
			return exit.UsageError(err.Error())
		}
		added, err := s.Typed(tokenFile)
		if err != nil {
			return err
		}
		if _, err := added.Token(); err != nil {
			return exit.UsageError(err.Error())
		}
		err = session.ChangeContexts(func(f *session.ContextFile) error {
			if _, exists := f.Contexts[name]; exists && !replace {
				return exit.UsageError(fmt.Sprintf("there is a context %q already; replace it with --replace", name))
			}
			f.Contexts[name] = added
			if use {
				f.Current = name
			}
			return nil
		})
		if err != nil {
			return err
		}
		cmd.PrintErrf("%s is %s\n", name, added.Address)
		return nil
	}
	return cmd
}

// completeContexts offers the names of contexts to a shell.
func completeContexts(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	f, err := session.ReadContexts()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.Names(), cobra.ShellCompDirectiveNoFileComp
}

// useContext returns `quartet context use`.
func useContext() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Choose the context of the commands from now on", Args: input.Exactly("NAME"),
		Example:           "  quartet context use prod\n  quartet context use local",
		ValidArgsFunction: completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			return session.ChangeContexts(func(f *session.ContextFile) error {
				if _, ok := f.Contexts[args[0]]; !ok && args[0] != session.LocalContext {
					return exit.UsageError(session.UnknownContext(args[0], *f).Error())
				}
				f.Current = args[0]
				return nil
			})
		},
	}
}

// removeContext returns `quartet context remove`.
func removeContext() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove a context; the file with its credential stays", Args: input.Exactly("NAME"),
		Aliases:           []string{"rm"},
		Long:              "Remove a context. If it is the current one, the current one is local afterwards.",
		Example:           "  quartet context remove prod",
		ValidArgsFunction: completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			return session.ChangeContexts(func(f *session.ContextFile) error {
				if _, ok := f.Contexts[args[0]]; !ok {
					return exit.UsageError(session.UnknownContext(args[0], *f).Error())
				}
				delete(f.Contexts, args[0])
				if f.Current == args[0] {
					f.Current = session.LocalContext
				}
				return nil
			})
		},
	}
}

// listedContext is an entry of `quartet context list -o json`.
type listedContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	session.Context
}

// listContexts returns `quartet context list`.
func listContexts(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the contexts", Args: input.None, Aliases: []string{"ls"},
		Long:    `List the contexts. A "*" marks the current one.`,
		Example: "  quartet context list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := session.ReadContexts()
			if err != nil {
				return err
			}
			var all []listedContext
			var rows [][]string
			for _, name := range f.Names() {
				c := f.Contexts[name]
				if name == session.LocalContext {
					c.Address = session.DefaultAddress
				}
				all = append(all, listedContext{name, name == f.Current, c})
				star, tls := "", ""
				if name == f.Current {
					star = "*"
				}
				switch {
				case c.CertFile != "":
					tls = "with certificate"
				case c.TLS || c.CAFile != "":
					tls = "yes"
				}
				rows = append(rows, []string{star, name, c.Address, tls, terminal.Printable(c.TokenFile)})
			}
			if s.JSON() {
				raw, err := json.MarshalIndent(map[string]any{"current": f.Current, "contexts": all}, "", "  ")
				if err == nil {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", raw)
				}
				return err
			}
			p := s.Printer(cmd)
			p.Table("", []string{"", "NAME", "ADDRESS", "TLS", "CREDENTIAL"}, rows)
			return p.Err()
		},
	}
}
