// Package exit turns the error of a command into a message on stderr and the
// exit code of the process.
//
// Owns: the exit codes, and what is advised for each reason of a refusal.
// Never does: end the process.
// Reads: the error, and the flag --request-id of the command.
// Emits: lines on stderr.
package exit

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/terminal"
	"quartet/services/cli/output"
)

// The exit codes. The help of the root command documents them; scripts depend on
// them, so they never change.
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	NotFound    = 3
	Conflict    = 4
	Unavailable = 5
)

// usageError is a mistake in the command line that was typed.
type usageError struct{ text string }

// Error implements error.
func (e *usageError) Error() string { return e.text }

// UsageError returns an error about the command line that was typed. It ends the
// command with code Usage.
func UsageError(text string) error { return &usageError{text} }

// silentError ends the command with a code and prints nothing.
type silentError struct{ code int }

// Error implements error.
func (e *silentError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// Silently returns an error that ends the command with a code and prints nothing,
// because the command printed already what is wrong.
func Silently(code int) error { return &silentError{code} }

// Report writes err, which must not be nil, for a person to the stderr of cmd and
// returns the exit code. For an error of Silently it writes nothing.
func Report(cmd *cobra.Command, err error) int {
	p := output.New(cmd.ErrOrStderr()) // if writing to stderr fails, there is nowhere to report it
	var (
		silent *silentError
		typed  *usageError
		e      *fault.Error
	)
	switch {
	case errors.As(err, &silent):
		return silent.code
	case errors.As(err, &typed):
		p.Printf("quartet: %s\n  see: %s --help\n", typed.text, cmd.CommandPath())
		return Usage
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled):
		p.Printf("quartet: interrupted\n")
		return Failed
	default:
		p.Printf("quartet: %v\n", err)
		return Failed
	}
	p.Printf("quartet: %s: %s\n", e.Reason(), terminal.Printable(e.Message()))
	for _, v := range e.Violations() {
		p.Printf("  %s %s\n", v.Field, v.Description)
	}
	if text := advice(cmd, e); text != "" {
		p.Printf("  fix: %s\n", text)
	}
	return code(e)
}

// code returns the exit code of a refusal.
func code(e *fault.Error) int {
	switch e.Code() {
	case codes.InvalidArgument, codes.OutOfRange:
		return Usage
	case codes.NotFound:
		return NotFound
	case codes.Aborted, codes.AlreadyExists, codes.FailedPrecondition:
		return Conflict
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return Unavailable
	}
	return Failed
}

// advice returns what to do about a refusal where the server's message cannot know
// it: names of flags and environment variables. It is "" for other refusals.
func advice(cmd *cobra.Command, e *fault.Error) string {
	switch e.Reason() {
	case fault.NotReady:
		return "check that a server runs at this address, or start one with: quartet dev. Another address: --address or $QUARTET_ADDRESS"
	case fault.Unauthenticated:
		return "give a credential with --token, $QUARTET_TOKEN or $QUARTET_TOKEN_FILE"
	case fault.RevisionConflict:
		if now := e.Metadata()["revision"]; now != "" {
			return "read it again; its revision is now " + now
		}
		return "read it again and repeat with its revision"
	case fault.Storage, fault.Deadline:
		if e.Metadata()["damaged"] != "" {
			return "run `quartet doctor`, which says what helps; repeating the command does not"
		}
		if f := cmd.Flags().Lookup("request-id"); f != nil && f.Value.String() != "" {
			return "repeat the command with --request-id " + f.Value.String() + "; it returns the outcome and changes nothing twice"
		}
		return "repeat the command"
	case fault.Overloaded:
		return "repeat the command in a moment"
	case fault.RequestIDReused:
		return "omit --request-id, or use a new one"
	case fault.InternalError:
		return "the server's log has the cause under error_id " + e.Metadata()[fault.ErrorIDKey]
	default:
		// The server's message says it all.
	}
	return ""
}
