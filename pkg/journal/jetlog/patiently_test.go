package jetlog

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A question that is lost is asked again; an answer, good or bad, is the answer;
// and the asker's own end is an end.
func TestQuestionsThatAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		asked := 0
		got, err := Patiently(t.Context(), func(ctx context.Context) (int, error) {
			if asked++; asked < 3 {
				return 0, lost(ctx)
			}
			return 7, nil
		})
		require.NoError(t, err)
		require.Equal(t, 7, got)
		require.Equal(t, 3, asked)

		asked = 0
		no := errors.New("no")
		_, err = Patiently(t.Context(), func(context.Context) (int, error) {
			asked++
			return 0, no
		})
		require.Equal(t, no, err)
		require.Equal(t, 1, asked)

		ctx, cancel := context.WithTimeout(t.Context(), 2*askTerm+time.Second)
		defer cancel()
		asked = 0
		_, err = Patiently(ctx, func(ctx context.Context) (int, error) {
			asked++
			return 0, lost(ctx)
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3, asked)
	})
}
