package work

import "quartet/pkg/fault"

// optionalID validates an id that may be left out.
func optionalID(field, value, prefix string) error {
	if value == "" {
		return nil
	}
	return fault.ID(field, value, prefix)
}
