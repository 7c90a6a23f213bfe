package doctor

import (
	"context"
	"fmt"
	"time"
)

// The states of a Finding.
const (
	OK      = "ok"
	Warning = "warning" // it works, and should be changed
	Problem = "problem" // it does not work
	Skipped = "skipped" // it could not be checked; the message says why
)

// Finding is what one check found.
type Finding struct {
	Check   string // such as data-dir
	Status  string // OK, Warning, Problem or Skipped
	Message string
	Mend    string // what to do; empty where nothing is to be done
}

// checkTerm is how long one check that uses the network may take.
const checkTerm = 5 * time.Second

// report collects findings in order.
type report struct{ found []Finding }

// add adds a finding. mend says what to do about it; empty if nothing is to be done.
func (r *report) add(check, status, mend, format string, args ...any) {
	r.found = append(r.found, Finding{Check: check, Status: status, Mend: mend, Message: fmt.Sprintf(format, args...)})
}

// ok adds that a check found nothing wrong.
func (r *report) ok(check, format string, args ...any) { r.add(check, OK, "", format, args...) }

// skip adds that a check could not be made, and why.
func (r *report) skip(check, format string, args ...any) { r.add(check, Skipped, "", format, args...) }

// Examine makes all checks, first those of the server that c reaches, then those of this machine.
// A check may have several findings, or none if the finding of another check makes it pointless.
func Examine(ctx context.Context, c Client, s Server) []Finding {
	r := &report{}
	answered := r.client(ctx, c)
	r.server(ctx, s, answered)
	return r.found
}
