package session

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
)

const (
	// completionTerm bounds how long a shell waits for completions.
	completionTerm = 1500 * time.Millisecond
	// maxCompletions is how many are offered, and completionPages how many pages are read for them.
	maxCompletions, completionPages = 200, 4
	// aboutColumns is the width of the words about a completion.
	aboutColumns = 60
)

// completeIDs lets a shell complete those arguments and flags that name records, in root and in all commands below it.
// connect is called when the shell completes, and returns a connection to the server. If the server cannot be
// reached, nothing is completed and no error is shown. Complete replaces no completion that a command or flag
// already has.
func completeIDs(root *cobra.Command, connect func() (*grpc.ClientConn, error)) {
	c := completer{connect}
	for _, cmd := range root.Commands() {
		completeIDs(cmd, connect)
	}
	at := positions(root)
	kinds := make([]*kind, len(at))
	some := false
	for i, name := range at {
		kinds[i] = placeholders[name]
		if name == "KEY" && root.Parent() != nil && root.Parent().Name() == "key" {
			kinds[i] = keyKind
		}
		some = some || kinds[i] != nil || name == boardPlaceholder
	}
	if some && root.ValidArgsFunction == nil {
		root.ValidArgsFunction = func(cmd *cobra.Command, args []string, begins string) ([]cobra.Completion,
			cobra.ShellCompDirective,
		) {
			i := len(args)
			switch {
			case i < len(at) && at[i] == boardPlaceholder:
				return c.board(cmd, begins)
			case i < len(at) && kinds[i] != nil:
				return c.list(cmd, kinds[i], ownerOf(cmd, args), begins)
			case i < len(at) && at[i] == "STATUS":
				return input.EnumNames[boardv1.StepStatus](), cobra.ShellCompDirectiveNoFileComp
			case i < len(at) && at[i] == "FILE", i >= len(at) && len(at) > 0 &&
				strings.HasSuffix(at[len(at)-1], "...]"):
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for name, k := range flagKinds {
		if root.LocalFlags().Lookup(name) == nil || name == "wait" && root.Name() != "input" {
			continue // --wait of other commands is a duration
		}
		// An error says that the flag has a completion already.
		_ = root.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, args []string, begins string) (
			[]cobra.Completion, cobra.ShellCompDirective,
		) {
			return c.list(cmd, k, ownerOf(cmd, args), begins)
		})
	}
	if root.LocalFlags().Lookup("resource") != nil {
		_ = root.RegisterFlagCompletionFunc("resource", func(cmd *cobra.Command, args []string, begins string) (
			[]cobra.Completion, cobra.ShellCompDirective,
		) {
			var all []cobra.Completion
			for _, k := range resourceKinds {
				some, _ := c.list(cmd, k, ownerOf(cmd, args), begins)
				all = append(all, some...)
			}
			return all, cobra.ShellCompDirectiveNoFileComp
		})
	}
}

// ownerOf returns whose records the arguments are about.
func ownerOf(cmd *cobra.Command, args []string) owner {
	all, board := words(cmd, args)
	return (&resolver{args: args, words: all, board: board}).owner()
}

// completer offers ids.
type completer struct {
	connect func() (*grpc.ClientConn, error)
}

// list returns the ids of a kind that begin with a text.
func (c completer) list(cmd *cobra.Command, k *kind, of owner, begins string) ([]cobra.Completion,
	cobra.ShellCompDirective,
) {
	conn, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(background(cmd), completionTerm)
	defer cancel()
	var out []cobra.Completion
	cursor := ""
	for range completionPages {
		page, err := k.list(ctx, conn, of, begins, &cursor)
		if err != nil {
			break // what was found is offered
		}
		for _, rec := range page {
			if strings.HasPrefix(rec.id, begins) && len(out) < maxCompletions {
				out = append(out, cobra.CompletionWithDesc(terminal.Printable(rec.id),
					output.Shorten(rec.about, aboutColumns)))
			}
		}
		if cursor == "" || len(out) == maxCompletions {
			break
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// board completes SESSION/BOARD: first the session, then its boards.
func (c completer) board(cmd *cobra.Command, begins string) ([]cobra.Completion, cobra.ShellCompDirective) {
	session, board, ok := strings.Cut(begins, "/")
	if !ok {
		all, _ := c.list(cmd, agentKind, owner{}, begins)
		for i, one := range all {
			id, about, _ := strings.Cut(one, "\t")
			all[i] = cobra.CompletionWithDesc(id+"/", about)
		}
		return all, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	all, directive := c.list(cmd, boardKind, owner{agent: session}, board)
	for i := range all {
		all[i] = session + "/" + all[i]
	}
	return all, directive
}

// background returns the context of a command, which has none while a shell asks for completions in a test.
func background(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}
