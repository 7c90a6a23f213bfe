// Package must makes a call that a test needs one expression: the call, and that it succeeds.
package must

import "github.com/stretchr/testify/require"

// Value returns a function that returns v, or ends its test if err is not nil:
//
//	item := must.Value(work.GetWorkItem(ctx, req))(t)
func Value[T any](v T, err error) func(require.TestingT) T {
	return func(t require.TestingT) T {
		if h, is := t.(interface{ Helper() }); is {
			h.Helper()
		}
		require.NoError(t, err)
		return v
	}
}
