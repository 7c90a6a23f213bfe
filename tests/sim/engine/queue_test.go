package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/tests/sim/engine"
)

// order returns in which order a seed lets ten crossings pass that are parked at once.
func order(t *testing.T, seed uint64) (names []string, digest string) {
	synctest.Test(t, func(t *testing.T) {
		q := engine.New(engine.Config{Seed: seed, Wait: synctest.Wait})
		var mu sync.Mutex
		for i := range 10 {
			go func() {
				o, err := q.Park(t.Context(), engine.Crossing{Edge: fmt.Sprint("edge ", i)})
				mu.Lock()
				defer mu.Unlock()
				names = append(names, fmt.Sprint(i, " ", o, " ", err))
			}()
		}
		for q.Step(time.Second) {
		}
		digest = q.Digest()
	})
	return names, digest
}

func TestQueue_TheSeedChooses(t *testing.T) {
	first, digest := order(t, 1)
	require.Len(t, first, 10)
	different := false
	for range 20 {
		again, d := order(t, 1)
		require.Equal(t, first, again)
		require.Equal(t, digest, d)
	}
	for seed := range uint64(20) {
		other, _ := order(t, seed+2)
		different = different || fmt.Sprint(other) != fmt.Sprint(first)
	}
	require.True(t, different)
}

func TestQueue_TimePassesUntilSomethingArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, began := engine.New(engine.Config{Wait: synctest.Wait}), time.Now()
		go func() {
			<-time.After(3 * time.Second)
			_, _ = q.Park(t.Context(), engine.Crossing{Edge: "late"})
		}()
		require.True(t, q.Step(time.Minute))
		require.Equal(t, 3*time.Second, time.Since(began).Round(time.Millisecond))
		require.True(t, q.Step(time.Minute))
		require.Equal(t, 1, q.Steps())
		require.False(t, q.Step(time.Minute))
	})
}

func TestQueue_WhatIsGivenUpIsNotParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := engine.New(engine.Config{Wait: synctest.Wait})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		must.Refuse(q.Park(ctx, engine.Crossing{Edge: "never"}))(t, context.DeadlineExceeded)
		require.Empty(t, q.Parked())
	})
}

// A name says for what something is done, so that two handlers that do the same are told apart.
func TestQueue_Names(t *testing.T) {
	q := engine.New(engine.Config{})
	a, b := engine.Because(t.Context(), "a"), engine.Because(t.Context(), "b")
	require.NotEqual(t, q.Name(a, "edge"), q.Name(b, "edge"))
	require.Equal(t, "edge#1", q.Name(t.Context(), "edge"))
	require.Equal(t, "edge#2", q.Name(t.Context(), "edge"))
}

// What a dead process had in flight reached the disk or not, and nothing that it does later does.
func TestProcess_DeathInFlight(t *testing.T) {
	stored := map[bool]int{}
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			q, p, inner := engine.New(engine.Config{Seed: seed, Wait: synctest.Wait}), engine.NewProcess("p"), journaltest.NewMemLog()
			log := &engine.Log{Queue: q, Of: p, Name: "log", Inner: inner, Disk: &engine.Disk{}}
			done := make(chan error, 1)
			go func() {
				_, err := log.Append(t.Context(), 0, framelog.Frame{ID: "f"})
				done <- err
			}()
			q.Kill(p)
			require.ErrorIs(t, <-done, engine.ErrDead)
			_, seq, err := inner.Tail(t.Context())
			require.NoError(t, err)
			stored[seq > 0]++
			must.Refuse(log.Append(t.Context(), seq, framelog.Frame{ID: "g"}))(t, engine.ErrDead)
			_, after, err := inner.Tail(t.Context())
			require.NoError(t, err)
			require.Equal(t, seq, after)
		})
	}
	require.Len(t, stored, 2, "both happen: %v", stored)
}

// Each outcome of an append is what its name says.
func TestLog_Faults(t *testing.T) {
	happened := map[string]bool{}
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			q := engine.New(engine.Config{Seed: seed, Wait: synctest.Wait, FaultRate: 1})
			inner := journaltest.NewMemLog()
			log := &engine.Log{Queue: q, Of: engine.NewProcess("p"), Name: "log", Inner: inner, Disk: &engine.Disk{}}
			var err error
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, err = log.Append(t.Context(), 0, framelog.Frame{ID: "f"})
			}()
			require.True(t, q.Step(0))
			fault := ""
			for o := range q.Faults() {
				fault = o.String()
			}
			q.Calm()
			for q.Step(time.Second) {
			}
			<-done
			_, seq, tailErr := inner.Tail(t.Context())
			require.NoError(t, tailErr)
			happened[fmt.Sprint(fault, ", stored ", seq > 0, ", ", cause(err))] = true
		})
	}
	require.Equal(t, map[string]bool{
		"lost, stored false, no answer":        true,
		"unanswered, stored true, no answer":   true,
		"doubled, stored true, wrong sequence": true,
		"refused, stored false, refused":       true,
		"busy, stored false, busy":             true,
		"delayed, stored true, no answer":      true,
	}, happened)
}

func cause(err error) string {
	for name, known := range map[string]error{
		"no answer": engine.ErrNoAnswer, "wrong sequence": framelog.ErrWrongSequence, "refused": framelog.ErrRefused,
		"busy": framelog.ErrBusy,
	} {
		if errors.Is(err, known) {
			return name
		}
	}
	return fmt.Sprint(err)
}
