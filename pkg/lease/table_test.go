package lease

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Everybody holds as many as the others, nothing moves that need not, and what
// was assigned once stays where nothing else changes.
func TestAssignIsEvenAndSteady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var members []string
		for i := range rapid.IntRange(1, 7).Draw(t, "members") {
			members = append(members, fmt.Sprint("m", i))
		}
		held := append([]string{"", "gone"}, members...)
		holders := rapid.SliceOfN(rapid.SampledFrom(held), 1, 32).Draw(t, "holders")
		got := assign("work", members, holders)
		count := map[string]int{}
		before := map[string]int{}
		for i, m := range got {
			require.Contains(t, members, m)
			count[m]++
			before[holders[i]]++
		}
		least, most := len(holders), 0
		for _, m := range members {
			least, most = min(least, count[m]), max(most, count[m])
		}
		require.LessOrEqual(t, most-least, 1)
		for _, m := range members {
			stayed := 0
			for i := range got {
				if got[i] == m && holders[i] == m {
					stayed++
				}
			}
			require.GreaterOrEqual(t, stayed, min(before[m], len(holders)/len(members)),
				"%s had to give up more than it has too much", m)
		}
		require.Equal(t, got, assign("work", members, got), "what is even stays")
		require.Equal(t, got, assign("work", members, slices.Clone(holders)))
	})
	require.Equal(t, []string{"", ""}, assign("work", nil, []string{"a", ""}))
}

func TestTableAppliesChangesOfTheBucket(t *testing.T) {
	tb, now := newTable(), time.Now()
	require.True(t, tb.apply("session.a", []byte(`{"addr":"h:1","groups":["work"]}`), 1, false, now))
	require.True(t, tb.apply("session.b", []byte(`{"addr":"h:2","groups":["work","task"]}`), 2, false, now))
	require.Equal(t, []string{"a", "b"}, tb.members("work"))
	require.Equal(t, []string{"b"}, tb.members("task"))
	require.True(t, tb.apply("part.work.0", []byte(`{"session":"a"}`), 3, false, now))
	id, lives := tb.holder("part.work.0", now, time.Second)
	require.Equal(t, []any{"a", true}, []any{id, lives})

	require.False(t, tb.apply("session.a", []byte(`{"addr":"h:1","groups":["work"]}`), 4, false, now.Add(time.Second)),
		"a renewal")
	require.Equal(t, []string{"b"}, tb.silent(now.Add(time.Second), time.Second))
	require.Empty(t, tb.silent(now.Add(time.Second-1), time.Second))
	require.Equal(t, []string{"a", "b"}, tb.silent(now.Add(2*time.Second), time.Second))

	require.True(t, tb.apply("session.b", []byte(`{"addr":"h:2","groups":["work","task"],"leaving":true}`), 5, false,
		now))
	require.Equal(t, []string{"a"}, tb.members("work"))
	require.True(t, tb.apply("session.a", nil, 6, true, now))
	_, lives = tb.holder("part.work.0", now, time.Second)
	require.False(t, lives, "its session is gone")
	require.True(t, tb.apply("part.work.0", []byte(`{}`), 7, false, now))
	_, lives = tb.holder("part.work.0", now, time.Second)
	require.False(t, lives)
	require.True(t, tb.apply("part.work.1", []byte(`{"session":"late"}`), 8, false, now))
	_, lives = tb.holder("part.work.1", now.Add(time.Second-1), time.Second)
	require.True(t, lives, "it was not heard of yet")
	_, lives = tb.holder("part.work.1", now.Add(time.Second), time.Second)
	require.False(t, lives, "it would have been")
	require.True(t, tb.apply("session.b", []byte(`{`), 9, false, now), "what cannot be read is gone")
	require.Empty(t, tb.sessions)
	require.False(t, tb.apply("other", nil, 10, false, now))
}
