package plane

import "quartet/pkg/fault"

// Stored returns an error of what a call does after its events were stored, such as reading a record for the answer. The call has had its
// effect by then, so the outcome none of such an error, which is that of the read alone, becomes unknown. Stored(nil) is nil.
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
