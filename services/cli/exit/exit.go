// Package exit turns the error of a command into a message on stderr and the
// exit code of the process.
//
// Owns: the exit codes, and what is advised for each reason of a refusal.
// Never does: end the process.
// Reads: the error, and the flags --request-id and -o of the command.
// Emits: lines on stderr, or a JSON document there.
package exit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"

	"quartet/pkg/client"
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

// Report writes err, which must not be nil, to the stderr of cmd and returns the exit code: for a
// person, or with -o json as one JSON document. For an error of Silently it writes nothing.
func Report(cmd *cobra.Command, err error) int {
	var silent *silentError
	if errors.As(err, &silent) {
		return silent.code
	}
	d := describe(cmd, err)
	p := output.New(cmd.ErrOrStderr()) // if writing to stderr fails, there is nowhere to report it
	if flagOf(cmd, "output") == "json" {
		writeJSON(p, d)
		return d.ExitCode
	}
	reason := ""
	if d.Reason != "" {
		reason = d.Reason + ": "
	}
	p.Printf("quartet: %s%s\n", reason, d.Message)
	for _, v := range d.Fields {
		p.Printf("  %s %s\n", v.Field, v.Description)
	}
	if d.Fix != "" {
		p.Printf("  fix: %s\n", d.Fix)
	}
	if d.See != "" {
		p.Printf("  see: %s\n", d.See)
	}
	return d.ExitCode
}

// failure describes an error. Its names are those of the REST API's errors where both have the same.
type failure struct {
	ExitCode int               `json:"exitCode"`
	Status   string            `json:"status,omitempty"` // the canonical gRPC code of a refusal
	Reason   string            `json:"reason,omitempty"` // from docs/errors.md
	Message  string            `json:"message"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Fields   []field           `json:"fields,omitempty"`
	Fix      string            `json:"fix,omitempty"`
	See      string            `json:"see,omitempty"` // a command with more about it
}

// field says what is wrong with a field of a request.
type field struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

// describe returns what is said about err.
func describe(cmd *cobra.Command, err error) failure {
	var (
		typed *usageError
		e     *fault.Error
	)
	switch {
	case errors.As(err, &typed):
		return failure{ExitCode: Usage, Message: typed.text, See: cmd.CommandPath() + " --help"}
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled):
		return failure{ExitCode: Failed, Message: "interrupted"}
	default:
		return failure{ExitCode: Failed, Message: err.Error()}
	}
	d := failure{
		ExitCode: code(e), Status: rpccode.Code(e.Code()).String(), Reason: string(e.Reason()),
		Message: terminal.Printable(e.Message()), Metadata: e.Metadata(), Fix: advice(cmd, e),
	}
	if speaksHTTP(e) {
		d.Message = "what answers at " + terminal.Printable(flagOf(cmd, "address")) + " does not speak gRPC"
	}
	for _, v := range e.Violations() {
		d.Fields = append(d.Fields, field(v))
	}
	return d
}

// flagOf returns the value of a flag; "" if there is none.
func flagOf(cmd *cobra.Command, name string) string {
	if f := cmd.Flag(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// writeJSON writes a failure as one document.
func writeJSON(p *output.Printer, d failure) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(map[string]failure{"error": d}); err != nil {
		return // this cannot happen: d has only texts and numbers
	}
	p.Printf("%s", text.String())
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
// it: names of flags and environment variables, and the commands for the methods that the message
// names (SPEC X5.1). It is "" for other refusals.
func advice(cmd *cobra.Command, e *fault.Error) string {
	if speaksHTTP(e) {
		return "the server at this address speaks HTTP/1.1 or answers REST: it is that of REST, not of gRPC. " +
			"--address and $QUARTET_ADDRESS take the gRPC address, host:port; by default its port is 7481"
	}
	switch e.Reason() {
	case fault.NotReady:
		if start := client.StartCommand(flagOf(cmd, "address")); start != "" {
			return "check that a server runs at this address, or start one with: " + start +
				". Another address: --address or $QUARTET_ADDRESS"
		}
		return "check that a server runs at this address. Another address: --address or $QUARTET_ADDRESS"
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
			return "repeat the command with --request-id " + f.Value.String() +
				"; it returns the outcome and changes nothing twice"
		}
		return "repeat the command"
	case fault.Overloaded:
		return "repeat the command in a moment"
	case fault.RequestIDReused:
		return "omit --request-id, or use a new one"
	case fault.InternalError:
		return "the server's log has the cause under error_id " + e.Metadata()[fault.ErrorIDKey]
	default:
	}
	return strings.Join(output.RemedyCommands(e.Message(), output.RemedyValuesOf(cmd, e.Metadata())), ", ")
}

// speaksHTTP reports whether e is the error of gRPC when a server of REST answers: without TLS the answer is
// HTTP/1.1, with TLS it is HTTP/2 but not gRPC.
func speaksHTTP(e *fault.Error) bool {
	return strings.Contains(e.Message(), "looked like an HTTP/1.1 header") ||
		strings.Contains(e.Message(), "unexpected HTTP status code received from server")
}
