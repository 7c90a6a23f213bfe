package plane

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"quartet/pkg/journal"
)

const (
	// afterHeader carries the positions of After between planes.
	afterHeader = "quartet-after"
	// afterTimeout bounds how long a read waits for the positions of After. A plane
	// that is down or far behind delays its readers for no longer.
	afterTimeout = 2 * time.Second
	// maxPositions bounds how many positions a request may carry.
	maxPositions = 8
)

// Position is an event in the journal of a plane's partition. The zero Position is
// before every event.
type Position struct {
	Plane     string
	Partition int
	WalSeq    uint64
}

func (p Position) String() string { return fmt.Sprintf("%s/%d@%d", p.Plane, p.Partition, p.WalSeq) }

// parsePosition is the inverse of Position.String; it returns false for any other text.
func parsePosition(text string) (Position, bool) {
	name, rest, ok1 := strings.Cut(text, "/")
	partition, seq, ok2 := strings.Cut(rest, "@")
	n, err1 := strconv.Atoi(partition)
	walSeq, err2 := strconv.ParseUint(seq, 10, 64)
	return Position{name, n, walSeq}, ok1 && ok2 && err1 == nil && err2 == nil && name != ""
}

// After makes the reads of calls under ctx wait until the plane that serves them has
// consumed the given positions of other planes' journals, so that the response shows
// their effects. The wait is bounded by 2 s on the serving plane's clock, and skipped
// where Config.Dependent says that nothing can change; the read happens in either case.
// Positions before the first event are left out. The serving plane ignores those of
// planes that it does not follow, and all beyond the first 8.
func After(ctx context.Context, positions ...Position) context.Context {
	var header []string
	for _, p := range positions {
		if p.WalSeq > 0 {
			header = append(header, afterHeader, p.String())
		}
	}
	return metadata.AppendToOutgoingContext(ctx, header...)
}

// positionsOf returns the positions that the caller of a served call gave with After.
// What cannot be read is ignored.
func positionsOf(ctx context.Context) []Position {
	var out []Position
	for _, text := range metadata.ValueFromIncomingContext(ctx, afterHeader) {
		if p, ok := parsePosition(text); ok && len(out) < maxPositions {
			out = append(out, p)
		}
	}
	return out
}

// At returns the position of an event in the journal that holds an agent.
func (e *Engine[S]) At(namespace, agentID string, walSeq uint64) Position {
	return Position{e.cfg.Plane, e.For(namespace, agentID).Index(), walSeq}
}

// Elsewhere returns a position in the journal of another plane that holds the same
// agent, such as the revision that a response of it reported.
func (e *Engine[S]) Elsewhere(plane, namespace, agentID string, walSeq uint64) Position {
	return Position{plane, journal.PartitionOf(namespace, agentID, e.deps.Partitions(plane)), walSeq}
}

// Consumed returns the position of the newest event that the partition of an agent has
// received from the journal of another plane that holds the same agent. The effects of the
// event may not be durable yet.
func (e *Engine[S]) Consumed(plane, namespace, agentID string) Position {
	p := e.Elsewhere(plane, namespace, agentID, 0)
	p.WalSeq = e.For(namespace, agentID).ConsumedUntil(p.Plane, p.Partition)
	return p
}

// awaitPositions waits until the partition of an agent has consumed the positions, for at most
// afterTimeout; not at all if Config.Dependent says that a read does not depend on them. Positions
// of planes that are not followed are ignored. The caller reads in any case.
func (e *Engine[S]) awaitPositions(ctx context.Context, namespace, agentID string, positions []Position) {
	part := e.For(namespace, agentID)
	if e.cfg.Dependent != nil {
		// Ahead: what is not durable yet counts as well, since the read waits for it anyway.
		depends, _, err := journal.View(journal.Ahead(ctx, part), part, func(s S) (bool, error) {
			return e.cfg.Dependent(s, namespace, agentID), nil
		})
		if err != nil || !depends {
			return
		}
	}
	timeout := e.deps.WaitClock.TimerAt(e.deps.WaitClock.Now().Add(afterTimeout))
	defer timeout.Stop()
	for _, p := range positions {
		if e.follows(p.Plane) && !part.AwaitConsumed(ctx, p.Plane, p.Partition, p.WalSeq, timeout.C()) {
			return // the read happens all the same, and fails if ctx ended or the partition did
		}
	}
}

// follows reports whether the plane follows another one.
func (e *Engine[S]) follows(plane string) bool {
	for _, f := range e.cfg.Follow {
		if f.Plane == plane {
			return true
		}
	}
	return false
}
