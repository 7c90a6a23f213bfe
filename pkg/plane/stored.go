package plane

import "quartet/pkg/fault"

// Stored returns the error for a call that failed with err after its events were stored, such as when it read a
// record for the answer. If err has the outcome none, which is true of the read alone, Stored replaces it by unknown,
// since the call has had its effect. Stored(nil) is nil.
func Stored(err error) error {
	if err == nil {
		return nil
	}
	f := fault.From(err)
	if f.Metadata()["outcome"] != "none" {
		return f
	}
	return f.With("outcome", "unknown")
}
