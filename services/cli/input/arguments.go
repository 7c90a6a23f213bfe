package input

import (
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"quartet/services/cli/exit"
)

// Group makes c a command that only has commands below it. Without this, cobra
// answers a mistyped subcommand with the help and exit code 0.
func Group(c *cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		text := fmt.Sprintf("%q is not a command of %q", args[0], cmd.CommandPath())
		if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
			text += fmt.Sprintf("; did you mean %q?", similar[0])
		}
		return exit.UsageError(text)
	}
	c.SuggestionsMinimumDistance = 2
	return c
}

// None accepts no positional arguments.
func None(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return exit.UsageError(fmt.Sprintf("%q takes no arguments, got %q", cmd.CommandPath(), args[0]))
	}
	return nil
}

// Exactly accepts one positional argument for each name. Its error names the
// first argument that is missing.
func Exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return exit.UsageError(fmt.Sprintf("%q is one argument too many; put text with blanks in quotes",
				args[len(names)]))
		}
		return AtLeast(names...)(cmd, args)
	}
}

// AtLeast accepts one positional argument for each name, and more.
func AtLeast(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return exit.UsageError(names[len(args)] + " is missing")
		}
		return nil
	}
}

// Paging holds the flags with which lists are read page by page.
type Paging struct {
	Size  int32
	Token string
}

// Flags declares --page-size and --page-token.
func (p *Paging) Flags(cmd *cobra.Command) {
	cmd.Flags().Int32Var(&p.Size, "page-size", 0, "Entries per page, at most 500 (default: the server's)")
	cmd.Flags().StringVar(&p.Token, "page-token", "", "Continue after an earlier page, with the token that it printed")
}

// Set writes the page into the fields page_size and page_token of a list's request.
func (p *Paging) Set(req proto.Message) {
	m := req.ProtoReflect()
	fields := m.Descriptor().Fields()
	m.Set(fields.ByName("page_size"), protoreflect.ValueOfInt32(p.Size))
	m.Set(fields.ByName("page_token"), protoreflect.ValueOfString(p.Token))
}
