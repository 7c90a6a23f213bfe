// Package must makes a call of a test one expression with what the test wants of it: that it succeeds, or how it fails.
package must

import "github.com/stretchr/testify/require"

// Value returns a function that returns v, or ends its test if err is not nil:
//
//	item := must.Value(work.GetWorkItem(ctx, req))(t)
func Value[T any](v T, err error) func(t require.TestingT, msg ...any) T {
	return func(t require.TestingT, msg ...any) T {
		helper(t)
		require.NoError(t, err, msg...)
		return v
	}
}

// Refuse returns a function that ends its test unless err is what that wants:
//
//	must.Refuse(work.GetWorkItem(ctx, req))(t, fault.NotFound)
func Refuse[T any](_ T, err error) func(t require.TestingT, want error, msg ...any) {
	return func(t require.TestingT, want error, msg ...any) {
		helper(t)
		require.ErrorIs(t, err, want, msg...)
	}
}

// Fail is Refuse with a text that the error contains.
func Fail[T any](_ T, err error) func(t require.TestingT, text string, msg ...any) {
	return func(t require.TestingT, text string, msg ...any) {
		helper(t)
		require.ErrorContains(t, err, text, msg...)
	}
}

// Err returns the error of a call of which only that matters.
func Err[T any](_ T, err error) error { return err }

func helper(t require.TestingT) {
	if h, is := t.(interface{ Helper() }); is {
		h.Helper()
	}
}
