package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	schedulerv1 "quartet/pkg/pb/quartet/scheduler/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// show runs the demonstration: an operator, an outside system, a crash, and the agent.
type show struct {
	api  *client.Client
	srv  *server
	tell *teller
	opts options
	pkgs []string
}

func (s *show) play(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := client.Again(ctx, func(ctx context.Context) (*agentv1.SpawnAgentResponse, error) {
		return s.api.Agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: agentID, RequestId: "demo-spawn", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
			WorkspaceRoot: s.srv.repo,
		})
	}); err != nil {
		return fmt.Errorf("spawn: %w", err)
	}
	const wish = "check every package of this repository"
	if _, err := client.Again(ctx, func(ctx context.Context) (*agentv1.EnqueueMessageResponse, error) {
		return s.api.Agents.EnqueueMessage(ctx, &agentv1.EnqueueMessageRequest{
			AgentId: agentID, RequestId: "demo-wish",
			Text: wish,
		})
	}); err != nil {
		return fmt.Errorf("message: %w", err)
	}
	s.tell.say("operator", "tells agent %s: %q", agentID, wish)

	asks := make(chan string, 1)
	log := newEventLog(s.api)
	keeper := &keeper{api: s.api, tell: s.tell, pkgs: s.pkgs, asks: asks}
	var actors sync.WaitGroup
	failed := make(chan error, 4)
	start := func(f func(context.Context) error) {
		actors.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				failed <- err
			}
		})
	}
	start(keeper.run)
	start(log.follow)
	start(func(ctx context.Context) error { return s.outside(ctx, asks) })
	if !s.opts.noKill {
		start(func(ctx context.Context) error { return s.crash(ctx, log) })
	}
	err := s.untilIdle(ctx, failed)
	cancel()
	actors.Wait()
	if err != nil {
		return err
	}
	return nil
}

// outside is the outside system: it waits for the URL of the agent's question, then answers the question from another
// process, and tries again while the server is away. It answers one question.
func (s *show) outside(ctx context.Context, asks <-chan string) error {
	select {
	case <-ctx.Done():
		return nil
	case url := <-asks:
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(1500 * time.Millisecond):
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			out, err := exec.CommandContext(ctx, self, "approve", url).CombinedOutput()
			if err != nil {
				continue // the server is away; an outside system tries again
			}
			s.tell.say("outside", "the board's own process POSTs to the trigger URL: %s",
				strings.TrimSpace(string(out)))
			return nil
		}
	}
}

// crash kills the server when the first commands have ended, and starts it again. The agent then starts the
// commands again that were running.
func (s *show) crash(ctx context.Context, log *eventLog) error {
	if !log.await(ctx, "task_completed", min(3, len(s.pkgs))) {
		return nil
	}
	began := time.Now()
	if err := s.srv.kill(); err != nil {
		return err
	}
	s.tell.say("KILL", "SIGKILL: the server is gone, in the middle of everything")
	up, err := s.srv.start(ctx)
	if err != nil {
		return fmt.Errorf("after the kill: %w", err)
	}
	s.tell.say("server", "is back: ready %s after its start, %s after the kill. Nobody tells it what to do.",
		up.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return nil
}

// untilIdle waits until the scheduler reports that the agent is idle because all items are completed, and then
// returns the result of conclude. It returns an error from failed, and one if the agent makes no progress.
func (s *show) untilIdle(ctx context.Context, failed <-chan error) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-tick.C:
		}
		e, err := client.Again(ctx, func(ctx context.Context) (*schedulerv1.ExplainResponse, error) {
			return s.api.Scheduler.Explain(ctx, &schedulerv1.ExplainRequest{AgentId: agentID})
		})
		if err != nil {
			return fmt.Errorf("explain: %w", err)
		}
		if v := e.GetVerdict(); v.GetAction() == agentv1.DecisionAction_DECISION_ACTION_IDLE &&
			v.GetReason() == "all_completed" {
			s.tell.say("scheduler", "%s", v.GetExplanation())
			return s.conclude(ctx)
		}
		if v := e.GetVerdict(); v.GetReason() == "no_progress" {
			return errors.New(v.GetExplanation())
		}
	}
}

// follow prints the output of a task until the task ends. After a restart of the server it continues where it was.
func (k *keeper) follow(ctx context.Context, taskID, command string) {
	label := command
	if i := strings.LastIndex(command, "/"); i >= 0 {
		label = strings.Join(strings.Fields(command)[:2], " ") + " …" + command[i:]
	}
	offset := int64(0)
	for range 100 {
		stream, err := k.api.Tasks.FollowTaskOutput(ctx, &taskv1.FollowTaskOutputRequest{
			AgentId: agentID, TaskId: taskID, Offset: offset,
		})
		for err == nil {
			var m *taskv1.FollowTaskOutputResponse
			if m, err = stream.Recv(); err != nil {
				break
			}
			if c := m.GetChunk(); c != nil {
				k.tell.output(label, string(c.GetData()))
				offset = c.GetOffset() + int64(len(c.GetData()))
			}
			if m.GetEnded() != nil {
				return
			}
		}
		<-time.After(200 * time.Millisecond)
	}
}

// goEnv returns the variables that the go command needs and a clean environment lacks.
func goEnv() map[string]any {
	env := map[string]any{}
	for _, name := range []string{
		"GOCACHE", "GOPATH", "GOMODCACHE", "GOPROXY", "GONOSUMDB", "GOFLAGS", "GOROOT",
		"GOTOOLCHAIN", "GOTMPDIR", "CGO_ENABLED",
	} {
		if v := os.Getenv(name); v != "" {
			env[name] = v
		}
	}
	// Less garbage collection: a fifth of the time of compilers, although their processes end soon.
	env["GOGC"] = "400"
	return env
}

// items reads every work item of the agent, also the completed ones.
func (s *show) items(ctx context.Context) ([]*workv1.WorkItem, error) {
	var all []*workv1.WorkItem
	token := ""
	for {
		page, err := client.Again(ctx, func(ctx context.Context) (*workv1.ListWorkItemsResponse, error) {
			return s.api.Work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{
				AgentId: agentID, PageSize: 500,
				PageToken: token,
			})
		})
		if err != nil {
			return nil, err
		}
		all = append(all, page.GetWorkItems()...)
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}
