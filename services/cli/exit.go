package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
)

// The exit codes. They are documented in the root's help and never change.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitUnavailable = 5
)

// usageError is a mistake in what was typed.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usage(text string) error { return &usageError{text} }

// exitError ends with a code and says nothing: all was said already.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// report writes err for a person and gives the exit code.
func report(cmd *cobra.Command, err error) int {
	p := newPrinter(cmd.ErrOrStderr()) // where even that fails nothing is left to say
	var (
		silent *exitError
		typed  *usageError
		e      *fault.Error
	)
	switch {
	case errors.As(err, &silent):
		return silent.code
	case errors.As(err, &typed):
		p.printf("quartet: %s\n  see: %s --help\n", typed.text, cmd.CommandPath())
		return exitUsage
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled):
		p.printf("quartet: interrupted\n")
		return exitFailed
	default:
		p.printf("quartet: %v\n", err)
		return exitFailed
	}
	p.printf("quartet: %s: %s\n", e.Reason(), printable(e.Message()))
	for _, v := range e.Violations() {
		p.printf("  %s %s\n", v.Field, v.Description)
	}
	if hint := mend(cmd, e); hint != "" {
		p.printf("  mend: %s\n", hint)
	}
	return exitCode(e)
}

func exitCode(e *fault.Error) int {
	switch e.Code() {
	case codes.InvalidArgument, codes.OutOfRange:
		return exitUsage
	case codes.NotFound:
		return exitNotFound
	case codes.Aborted, codes.AlreadyExists, codes.FailedPrecondition:
		return exitConflict
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return exitUnavailable
	}
	return exitFailed
}

// mend says what to do about a refusal, where its message cannot know.
func mend(cmd *cobra.Command, e *fault.Error) string {
	switch e.Reason() {
	case fault.NotReady:
		return "is a server there? Start one with: quartet dev. Another address: --address or $QUARTET_ADDRESS"
	case fault.Unauthenticated:
		return "give a credential with --token, $QUARTET_TOKEN or $QUARTET_TOKEN_FILE"
	case fault.RevisionConflict:
		if now := e.Metadata()["revision"]; now != "" {
			return "read it again; it stands at revision " + now
		}
		return "read it again and repeat with its revision"
	case fault.Storage, fault.Deadline:
		if f := cmd.Flags().Lookup("request-id"); f != nil && f.Value.String() != "" {
			return "repeat the command with --request-id " + f.Value.String() + "; it tells the outcome and does nothing twice"
		}
		return "repeat the command"
	case fault.Overloaded:
		return "repeat the command in a moment"
	case fault.RequestIDReused:
		return "leave --request-id out, or take a new one"
	case fault.InternalError:
		return "the server's log has the cause under error_id " + e.Metadata()[fault.ErrorIDKey]
	}
	return ""
}
