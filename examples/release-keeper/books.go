package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// eventLog collects the agent's events. After a restart of the server it continues at its cursor, so that it
// misses none.
type eventLog struct {
	api *client.Client

	mu     sync.Mutex
	events []*eventv1.Event
	counts map[string]int // by event type
	change chan struct{}  // closed and replaced with each event
}

func newEventLog(a *client.Client) *eventLog {
	return &eventLog{api: a, counts: map[string]int{}, change: make(chan struct{})}
}

func (l *eventLog) follow(ctx context.Context) error {
	cursor := ""
	_, err := client.Again(ctx, func(context.Context) (struct{}, error) {
		stream, err := l.api.Events.WatchEvents(ctx, &eventv1.WatchEventsRequest{
			AgentId: agentID, Cursor: cursor,
			FromStart: cursor == "",
		})
		for err == nil {
			var m *eventv1.WatchEventsResponse
			if m, err = stream.Recv(); err == nil && m.GetEvent() != nil {
				cursor = m.GetEvent().GetCursor()
				l.add(m.GetEvent())
			}
		}
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Unavailable, "the stream ended")
		}
		return struct{}{}, err
	})
	return err
}

func (l *eventLog) add(e *eventv1.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	l.counts[e.GetEventType()]++
	close(l.change)
	l.change = make(chan struct{})
}

// await waits until n events of a type were received. It returns false if ctx ends first.
func (l *eventLog) await(ctx context.Context, eventType string, n int) bool {
	for {
		l.mu.Lock()
		have, change := l.counts[eventType], l.change
		l.mu.Unlock()
		if have >= n {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-change:
		}
	}
}

// conclude returns an error if checkBooks finds that the records are wrong; failedPackages with the
// reports of the packages of which a command failed, if there are any; and otherwise nil.
func (s *show) conclude(ctx context.Context) error {
	if err := s.checkBooks(ctx); err != nil {
		return err
	}
	items, err := s.items(ctx)
	if err != nil {
		return err
	}
	var failed []string
	for _, it := range items {
		if strings.Contains(it.GetResultSummary(), failedPhrase) {
			failed = append(failed, it.GetResultSummary())
		}
	}
	if len(failed) > 0 {
		return failedPackages{reports: failed, of: len(s.pkgs)}
	}
	return nil
}

// failedPackages is the error of a run that checked all packages and found that some fail.
type failedPackages struct {
	reports []string // one for each package that failed
	of      int      // number of packages checked
}

func (f failedPackages) Error() string {
	return fmt.Sprintf("%d of %d packages failed:\n  %s", len(f.reports), f.of, strings.Join(f.reports, "\n  "))
}

// checkBooks reads all events and records again, and returns an error if something is missing or happened
// twice.
func (s *show) checkBooks(ctx context.Context) error {
	items, err := s.items(ctx)
	if err != nil {
		return err
	}
	if want := len(s.pkgs) + 2; len(items) != want {
		return fmt.Errorf("there are %d work items, %d were made", len(items), want)
	}
	events, err := s.allEvents(ctx)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	last := map[string]int64{}
	done, reports, results := map[string]int{}, map[string]int{}, map[string]int{}
	for _, e := range events {
		if seen[e.GetEventId()] {
			return fmt.Errorf("event %s came twice", e.GetEventId())
		}
		seen[e.GetEventId()] = true
		if e.GetWalSeq() <= last[e.GetPlane()] {
			return fmt.Errorf("event %s of plane %s is out of order", e.GetEventId(), e.GetPlane())
		}
		last[e.GetPlane()] = e.GetWalSeq()
		switch e.GetEventType() {
		case "work_item_completed":
			done[e.GetWorkItemId()]++
		case "report_promoted":
			reports[e.GetWorkItemId()]++
		case "message_queued":
			if e.GetTaskId() != "" {
				results[e.GetTaskId()]++
			}
		}
	}
	for _, it := range items {
		id := it.GetWorkItemId()
		if it.GetState() != workv1.WorkItemState_WORK_ITEM_STATE_COMPLETED || done[id] != 1 || reports[id] != 1 ||
			it.GetResultSummary() == "" {
			return fmt.Errorf("item %s: state %s, completed %d times, reported %d times", id, it.GetState(), done[id],
				reports[id])
		}
	}
	tasks, err := s.tasks(ctx)
	if err != nil {
		return err
	}
	alone := 0
	for _, t := range tasks {
		n := results[t.GetTaskId()]
		if n == 1 {
			continue
		}
		// If a turn is lost after it has started a command and before it waits for it, nothing waits for the
		// command, and the next turn starts another command.
		r, err := client.Again(ctx, func(ctx context.Context) (*agentv1.GetTurnResponse, error) {
			return s.api.Agents.GetTurn(ctx, &agentv1.GetTurnRequest{AgentId: agentID, TurnId: t.GetTurnId()})
		})
		if err != nil {
			return fmt.Errorf("task %s brought %d results, and its turn is not known: %w", t.GetTaskId(), n, err)
		}
		turn := r.GetTurn()
		if n != 0 || turn.GetState() != agentv1.TurnState_TURN_STATE_INTERRUPTED {
			return fmt.Errorf("task %s brought %d results; its turn is %s (%s)", t.GetTaskId(), n, turn.GetState(),
				turn.GetEndReason())
		}
		alone++
	}
	s.tell.say("check", "%d events in order, none twice; %d items completed once, each with one report; %d tasks, "+
		"each with one result",
		len(events), len(items), len(tasks)-alone)
	if alone > 0 {
		s.tell.say("check", "%d commands of turns that were lost before they waited for them", alone)
	}
	return nil
}

// allEvents reads the agent's events from the first one to the last. If a server stops meanwhile, it goes on after the
// last event that it has.
func (s *show) allEvents(ctx context.Context) (all []*eventv1.Event, err error) {
	cursor := ""
	_, err = client.Again(ctx, func(context.Context) (struct{}, error) {
		stream, err := s.api.Events.WatchEvents(ctx, &eventv1.WatchEventsRequest{
			AgentId: agentID, Cursor: cursor,
			FromStart: cursor == "", StopAtEnd: true,
		})
		for err == nil {
			var m *eventv1.WatchEventsResponse
			if m, err = stream.Recv(); err == nil && m.GetEvent() != nil {
				cursor = m.GetEvent().GetCursor()
				all = append(all, m.GetEvent())
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return struct{}{}, err
	})
	return all, err
}

func (s *show) tasks(ctx context.Context) ([]*taskv1.Task, error) {
	var all []*taskv1.Task
	token := ""
	for {
		page, err := client.Again(ctx, func(ctx context.Context) (*taskv1.ListTasksResponse, error) {
			return s.api.Tasks.ListTasks(ctx, &taskv1.ListTasksRequest{
				AgentId: agentID, IncludeTerminal: true,
				PageSize: 500, PageToken: token,
			})
		})
		if err != nil {
			return nil, err
		}
		all = append(all, page.GetTasks()...)
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}
