package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
)

// maxCandidates is how many ids an error names.
const maxCandidates = 5

// runWithIDs completes ids of which only the beginning was typed, in args and in the values of cmd's flags, and calls
// do with the resulting args. An id is completed if no other one has this beginning. Generated ids are completed before
// do is called. Names that people choose are used as they were typed; only if do returns NOT_FOUND, Run completes
// them and calls do a second time. A complete id costs no call. Run reports on stderr which id was meant.
func runWithIDs(cmd *cobra.Command, conn grpc.ClientConnInterface, args []string, do func(args []string) error) error {
	all, board := words(cmd, args)
	if len(all) == 0 && board < 0 {
		return do(args)
	}
	r := &resolver{ctx: cmd.Context(), cmd: cmd, conn: conn, args: slices.Clone(args), words: all, board: board}
	if err := r.generated(); err != nil {
		return err
	}
	typed := &replay{from: cmd.InOrStdin()}
	cmd.SetIn(typed)
	err := do(r.args)
	if !errors.Is(err, fault.NotFound) {
		return err
	}
	changed, again := r.chosen()
	if again != nil {
		return again
	}
	if !changed {
		return err
	}
	typed.rewind()
	return do(r.args)
}

// resolver completes the words of one command.
type resolver struct {
	ctx   context.Context //nolint:containedctx // of the command
	cmd   *cobra.Command
	conn  grpc.ClientConnInterface
	args  []string
	words []word
	board int  // the index of the argument that names a board, or -1
	known bool // the agent was looked up
}

// generated completes the ids that are generated.
func (r *resolver) generated() error {
	for _, w := range r.words {
		typed := w.text(r.args)
		if !w.kind.incomplete(typed) {
			continue
		}
		found, err := r.find(w.kind, typed)
		if errors.Is(err, fault.NotFound) { // the agent may be one that is not named in full
			changed, again := r.chosen()
			if again != nil {
				return again
			}
			if changed {
				found, err = r.find(w.kind, typed)
			}
		}
		full, err := r.only(w.kind, typed, found, err)
		if err != nil {
			return err
		}
		if err := w.set(r.args, full); err != nil {
			return err
		}
	}
	return nil
}

// chosen completes the names that people choose, and reports whether one changed.
func (r *resolver) chosen() (changed bool, err error) {
	if r.known {
		return false, nil
	}
	r.known = true
	replace := func(k *kind, typed string, set func(string) error) error {
		if typed == "" {
			return nil
		}
		found, err := r.find(k, typed)
		if err != nil {
			return nil //nolint:nilerr // the error of the command itself says more
		}
		full, err := r.only(k, typed, found, nil)
		if err != nil || full == typed {
			return err
		}
		changed = true
		return set(full)
	}
	for _, w := range r.words {
		if w.kind != agentKind {
			continue
		}
		if err := replace(agentKind, w.text(r.args), func(full string) error { return w.set(r.args, full) }); err !=
			nil {
			return false, err
		}
	}
	if r.board < 0 {
		return changed, nil
	}
	agent, board, ok := strings.Cut(r.args[r.board], "/")
	if !ok {
		return changed, nil
	}
	if err := replace(agentKind, agent, func(full string) error {
		agent = full
		r.args[r.board] = agent + "/" + board
		return nil
	}); err != nil {
		return false, err
	}
	err = replace(boardKind, board, func(full string) error {
		r.args[r.board] = agent + "/" + full
		return nil
	})
	return changed, err
}

// owner returns whose records the command is about.
func (r *resolver) owner() owner {
	if r.board >= 0 {
		agent, board, _ := strings.Cut(r.args[r.board], "/")
		return owner{agent: agent, board: board}
	}
	for _, w := range r.words {
		if w.kind == agentKind {
			return owner{agent: w.text(r.args)}
		}
	}
	return owner{}
}

// errMany is the error of a list that is too long to be searched.
var errMany = errors.New("too many")

// find returns the ids that begin with what was typed, at most maxCandidates+1 of them, or only the one that is equal
// to it.
func (r *resolver) find(k *kind, typed string) ([]string, error) {
	var found []string
	cursor := ""
	for range maxPages {
		page, err := k.list(r.ctx, r.conn, r.owner(), typed, &cursor)
		if err != nil {
			return nil, err
		}
		for _, rec := range page {
			if rec.id == typed {
				return []string{typed}, nil
			}
			if strings.HasPrefix(rec.id, typed) && !slices.Contains(found, rec.id) {
				found = append(found, rec.id)
			}
		}
		if cursor == "" || len(found) > maxCandidates {
			return found, nil
		}
	}
	return found, errMany
}

// only returns the one id that was found, or what was typed if there is none, so that the server refuses it. It
// returns a usage error if several were found. err is the error of find: errMany is a usage error too; any other is
// left to the command, whose call fails the same way.
func (r *resolver) only(k *kind, typed string, found []string, err error) (string, error) {
	switch {
	case errors.Is(err, errMany):
		return "", exit.UsageError(fmt.Sprintf("%q is the beginning of an id, and there are more than %d %s to "+
			"search; give the whole id", typed, pageSize*maxPages, k.what))
	case err != nil || len(found) == 0 || found[0] == typed:
		return typed, nil //nolint:nilerr // the call of the command fails the same way, and says more
	case len(found) == 1 && (k.prefix != "" || !destructive[r.cmd.Name()]):
		if f := r.cmd.Flag("output"); f == nil || f.Value.String() != "json" {
			r.cmd.PrintErrf("quartet: %s is %s\n", terminal.Printable(typed), terminal.Printable(found[0]))
		}
		return found[0], nil
	}
	more := ""
	if len(found) > maxCandidates {
		found, more = found[:maxCandidates], " and others"
	}
	if len(found) == 1 {
		return "", exit.UsageError(fmt.Sprintf("there is no %q; did you mean %s? %q takes the whole name", typed,
			found[0], r.cmd.CommandPath()))
	}
	return "", exit.UsageError(fmt.Sprintf("%q is the beginning of several %s: %s%s; give more of it", typed, k.what,
		terminal.Printable(strings.Join(found, ", ")), more))
}

// replay is an input that can be read a second time.
type replay struct {
	from io.Reader
	read bytes.Buffer
}

// Read implements io.Reader. It keeps a copy of what it returns; after rewind it returns that once more, and then
// what follows in the input.
func (r *replay) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.read.Write(p[:n])
	return n, err
}

// rewind lets the input begin again with what was read.
func (r *replay) rewind() {
	r.from = io.MultiReader(bytes.NewReader(bytes.Clone(r.read.Bytes())), r.from)
	r.read.Reset()
}
