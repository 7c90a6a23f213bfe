package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/rpc"
	"quartet/services/cli/agents"
	"quartet/services/cli/output"
	"quartet/services/cli/work"
)

// TestTables compares the output of every command for people with testdata.
func TestTables(t *testing.T) {
	r := newHarness(t)
	for plane, lines := range map[string][]string{
		"agent": {
			"spawn keeper", "get keeper", "list", "list --parent x", "say keeper hello", "messages keeper",
			"turns keeper", "children keeper",
			"pause keeper --reason lunch", "resume keeper", "stop keeper", "start keeper", "abort keeper",
			"abort keeper --run run_1", "delete keeper", "delete keeper --yes",
		},
		"transcript": {
			"briefs keeper", "briefs keeper --kind failure", "rounds keeper",
			"rounds keeper --turn trn_1 --full", "rounds keeper --page-token abc", "transcript keeper --item wi_1",
			"conversation keeper --contains teal", "conversation keeper --page-token abc",
			"context keeper", "context keeper --budget 512 --text", "tools keeper", "tools keeper completeworkitem",
			"tools keeper Fly",
		},
		"work": {
			"create keeper objective", "list keeper", "get keeper wi_1", "get keeper wi_2", "pick keeper wi_1",
			"update keeper wi_1 --unblock", "complete keeper wi_1", "queue keeper", "board keeper",
		},
		"wait": {
			"for keeper reason --wake external", "create keeper condition", "get keeper wt_1",
			"cancel keeper wt_1", "list keeper",
		},
		"trigger": {
			"create keeper CI", "create keeper CI --signing-secret visible", "get keeper trg_1",
			"rotate keeper trg_1", "cancel keeper trg_1", "list keeper",
			"deliver http://x/v1/triggers/qtr_x --data hi",
		},
		"timer": {
			"create keeper look --after 5m", "create keeper look --every 1d --count 3", "get keeper tmr_1",
			"cancel keeper tmr_1", "list keeper",
		},
		"task": {
			"exec keeper --shell test", "exec keeper --shell build", "exec keeper --shell slow", "list keeper",
			"get keeper tsk_1", "output keeper tsk_1", "output -f keeper tsk_1", "input keeper tsk_1 yes",
			"input keeper tsk_1 no", "input keeper tsk_1 red --wait wt_1", "stop keeper tsk_1",
		},
		"board": {
			"list keeper", "show keeper/build", "show build", "show keeper/other", "inspect keeper/build",
			"apply keeper testdata/board.yaml --dry-run", "apply keeper testdata/board.yaml --prune",
			"apply keeper testdata/other.yaml", "complete keeper/build", "fail keeper/build --reason late",
			"cancel keeper/build", "block keeper/build --reason freeze", "reopen keeper/build --step test",
			"step keeper/build release completed --result signed", "step keeper/build release done",
			"dispatch keeper/build --pool go --wait 5s", "open keeper/build go --parallel 4",
			"close keeper/build dsp_1",
			"runs keeper/build", "cancel-run keeper/build run_1", "workers", "template", "summary keeper",
			"wal list keeper", "wal read keeper build", "wal read keeper build --follow",
			"replay testdata/cut.wal.jsonl", "wal verify testdata/changed.wal.jsonl",
		},
		"explain": {"keeper", "keeper --history"},
		"prime":   {"keeper"},
		"events":  {""},
	} {
		t.Run(plane, func(t *testing.T) {
			r.t = t
			var all strings.Builder
			name := plane
			if plane == "transcript" { // commands of agents too, in a file of their own
				name = "agent"
			}
			for _, line := range lines {
				s := r.run(append([]string{name}, strings.Fields(line)...)...)
				fmt.Fprintf(&all, "$ quartet %s\n%s", strings.TrimSpace(name+" "+line), s.out)
				for _, e := range strings.SplitAfter(s.err, "\n") {
					if e != "" {
						all.WriteString("! " + e)
					}
				}
				if s.code != 0 {
					fmt.Fprintf(&all, "exit %d\n", s.code)
				}
				all.WriteString("\n")
			}
			require.NotContains(t, all.String(), "\x1b", "no colours and no foreign escapes")
			golden(t, plane, all.String())
		})
	}
}

// With -o json every command that is not a stream writes one JSON document.
func TestJSONIsOneDocumentOnStdout(t *testing.T) {
	r := newHarness(t)
	for _, line := range []string{
		"agent spawn keeper", "agent get keeper", "agent list", "agent list --parent x", "agent say keeper hi",
		"agent messages keeper", "agent turns keeper", "agent children keeper",
		"agent pause keeper", "agent resume keeper", "agent stop keeper", "agent start keeper", "agent abort keeper",
		"agent delete keeper --yes", "agent show keeper",
		"agent briefs keeper", "agent rounds keeper", "agent context keeper", "agent context keeper --text",
		"agent tools keeper", "agent tools keeper CompleteWorkItem",
		"work create keeper x", "work list keeper", "work get keeper wi_1", "work pick keeper wi_1",
		"work update keeper wi_1 --unblock", "work complete keeper wi_1", "work queue keeper", "work board keeper",
		"explain keeper --history",
		"wait for keeper r --wake operator", "wait create keeper c", "wait get keeper wt_1", "wait cancel keeper wt_1",
		"wait list keeper",
		"trigger create keeper x", "trigger get keeper t", "trigger rotate keeper t", "trigger cancel keeper t",
		"trigger list keeper", "trigger deliver x",
		"timer create keeper x --after 1s", "timer get keeper t", "timer cancel keeper t", "timer list keeper",
		"task exec keeper --shell test", "task list keeper", "task get keeper t", "task output keeper t",
		"task input keeper t yes", "task stop keeper t", "explain keeper", "prime keeper",
	} {
		s := r.run(append(strings.Fields(line), "-o", "json")...)
		require.Equal(t, 0, s.code, "%s: %s", line, s.err)
		d := json.NewDecoder(strings.NewReader(s.out))
		var v map[string]any
		require.NoError(t, d.Decode(&v), "%s: %s", line, s.out)
		require.ErrorIs(t, d.Decode(&v), io.EOF, line)
	}
	m := &agentv1.GetAgentResponse{}
	require.NoError(t, protojson.Unmarshal([]byte(r.run("agent", "get", "keeper", "-o", "json").out), m))
	require.True(t, proto.Equal(keeper, m.GetAgent()))
	s := r.run("events", "-o", "json")
	require.Len(t, strings.Split(strings.TrimSpace(s.out), "\n"), 2)
}

func TestExitCodesAndErrors(t *testing.T) {
	r := newHarness(t)
	for _, c := range []struct {
		err  *fault.Error
		code int
		want string
	}{
		{fault.NotFound.New(`agent "keeper" does not exist`), 3, "NOT_FOUND: agent \"keeper\" does not exist"},
		{fault.RevisionConflict.New("it moved on", "revision", "9"), 4, "fix: read it again; its revision is now 9"},
		{fault.WorkItemCompleted.New("it is completed"), 4, "WORK_ITEM_COMPLETED"},
		{fault.RequestIDReused.New("used"), 4, "fix: omit --request-id"},
		{fault.Storage.New("unknown", "outcome", "unknown"), 5, "--request-id req1"},
		{fault.Overloaded.New("busy"), 5, "in a moment"},
		{fault.Invalid("objective", "", "must not be empty"), 2, "objective must not be empty"},
		{fault.PermissionDenied.New("not you"), 1, "PERMISSION_DENIED"},
		{fault.Unauthenticated.New("who?"), 1, "QUARTET_TOKEN"},
		{fault.Internal(io.ErrUnexpectedEOF), 1, "error_id"},
	} {
		r.planes.fail(c.err)
		s := r.run("work", "complete", "keeper", "wi_1", "--request-id", "req1")
		require.Equal(t, c.code, s.code, s.err)
		require.Contains(t, s.err, c.want)
		require.Empty(t, s.out, "errors are on stderr only")
	}
	r.planes.fail(nil)
	r.address = "127.0.0.1:1"
	s := r.run("agent", "list")
	require.Equal(t, 5, s.code)
	require.Contains(t, s.err, "quartet dev")
}

func TestUsageErrors(t *testing.T) {
	r := newHarness(t)
	for line, want := range map[string]string{
		"agnt":                                        `did you mean "agent"`,
		"agent gt":                                    "is not a command of",
		"agent get":                                   "AGENT is missing",
		"agent get a b":                               "one argument too many",
		"agent list x":                                "takes no arguments",
		"agent get a --colour":                        "unknown flag",
		"agent spawn":                                 "AGENT is missing",
		"agent spawn a b":                             "one AGENT",
		"agent get a -o yaml":                         "use table or json",
		"agent briefs a --kind rumour":                "use one of ack, result, failure",
		"agent rounds":                                "AGENT is missing",
		"agent tools":                                 "AGENT is missing",
		"agent tools a b c":                           `"c" is one argument too many`,
		"agent context a --budget much":               "invalid argument",
		"work create a":                               "OBJECTIVE is missing",
		"work list a --filter odd":                    "use one of all, open",
		"wait for a r":                                "--wake is missing",
		"wait for a r --wake rain":                    "use one of operator_input",
		"wait for a r --wake timer --after soon":      "write 90s, 5m",
		"timer create a d --at tomorrow":              "RFC 3339",
		"timer create a":                              "DESCRIPTION is missing",
		"trigger create a":                            "DESCRIPTION is missing",
		"trigger create a d --signature md5":          "use one of hub_sha256, standard_webhooks",
		"timer create a d --every often":              "write 90s, 5m",
		"timer create a d --after 999999999999999s":   "is too long a duration",
		"task exec a":                                 "either --shell",
		"task exec a --shell x -- y":                  "either --shell",
		"agent say a @" + filepath.Join("no", "such"): "no such file",
		"agent get a --address %zz://":                "--address",
		"serve":                                       "SERVICE is missing",
		"events --timeout 5s":                         "--timeout is for -f",
	} {
		s := r.run(strings.Fields(line)...)
		require.Equal(t, 2, s.code, "%s: %s", line, s.err)
		require.Contains(t, s.err, want, line)
		require.Contains(t, s.err, "--help")
		require.Empty(t, s.out)
	}
}

// Every command has a short help and an example.
func TestEveryCommandHasHelpAndAnExample(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		require.NotEmpty(t, c.Short, c.CommandPath())
		if !c.HasSubCommands() && c.Name() != "version" && c.Name() != "help" {
			require.Contains(t, c.Example, c.CommandPath(), c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(Command(Servers{}))
	r := newHarness(t)
	s := r.run("--help")
	require.Equal(t, 0, s.code)
	require.Contains(t, s.out, "Exit codes:")
	require.Contains(t, r.run("version").out, "quartet 1.2.3\nrevision  0123456789abcdef\ndate      "+
		"2026-01-02T03:04:05Z\n")
	require.Equal(t, "quartet 1.2.3-0123456789ab\n", r.run("--version").out)
	require.JSONEq(t,
		`{"version":"1.2.3","revision":"0123456789abcdef","date":"2026-01-02T03:04:05Z","go":"go1","platform":"linux/amd64"}`, r.run("version", "-o", "json").out)
	require.Contains(t, r.run("completion", "bash").out, "quartet")
}

func TestFlagsReachTheRequests(t *testing.T) {
	r := newHarness(t)
	file := filepath.Join(t.TempDir(), "plan.md")
	require.NoError(t, os.WriteFile(file, []byte("# Plan"), 0o600))
	require.Equal(t, 0, r.run("work", "create", "keeper", "x", "--plan", "@"+file, "--status", "needs-input", "--todo",
		"[x] a", "--todo", "[>]b", "--todo", "c").code)
	create, ok := r.planes.last.(*workv1.CreateWorkItemRequest)
	require.True(t, ok)
	require.Equal(t, "# Plan", create.GetPlan())
	require.Equal(t, workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT, create.GetPlanStatus())
	require.Regexp(t, "^cli_", create.GetRequestId(), "a mutation always has a request id")
	var list []string
	for _, it := range create.GetTodoList() {
		list = append(list, it.GetText()+" "+pbjson.EnumText(it.GetState()))
	}
	require.Equal(t, []string{"a completed", "b in_progress", "c pending"}, list)

	require.Equal(t, 0, r.run("work", "update", "keeper", "wi_1", "--todo", "", "--blocked-by", "", "--if-revision",
		"7", "--recheck", "2026-02-02T08:00:00Z").code)
	update, ok := r.planes.last.(*workv1.UpdateWorkItemRequest)
	require.True(t, ok)
	require.NotNil(t, update.GetTodoList())
	require.Empty(t, update.GetTodoList().GetItems())
	require.NotNil(t, update.BlockedBy, "an empty blocker is for the server to refuse")
	require.Nil(t, update.Objective)
	require.EqualValues(t, 7, update.GetExpectedRevision())
	require.Equal(t, "2026-02-02T08:00:00Z", update.GetRecheckAt().AsTime().Format(time.RFC3339))

	require.Equal(t, 0, r.run("work", "update", "keeper", "wi_1", "--no-recheck").code)
	update, ok = r.planes.last.(*workv1.UpdateWorkItemRequest)
	require.True(t, ok)
	require.True(t, update.GetClearRecheckAt())

	require.Equal(t, 0, r.runIn("from stdin", "agent", "say", "keeper", "-", "--priority", "interject").code)
	message, ok := r.planes.last.(*agentv1.EnqueueMessageRequest)
	require.True(t, ok)
	require.Equal(t, "from stdin", message.GetText())
	require.Equal(t, agentv1.Priority_PRIORITY_INTERJECT, message.GetPriority())
	require.Equal(t, 0, r.run("agent", "say", "keeper", "x", "--interject").code)
	message, ok = r.planes.last.(*agentv1.EnqueueMessageRequest)
	require.True(t, ok)
	require.Equal(t, agentv1.Priority_PRIORITY_INTERJECT, message.GetPriority())
	require.Equal(t, 2, r.run("agent", "say", "keeper", "x", "--interject", "--priority", "next").code)
	require.Equal(t, 0, r.run("agent", "delete", "keeper", "--yes", "--revision", "4", "--reason", "over").code)
	del, ok := r.planes.last.(*agentv1.DeleteAgentRequest)
	require.True(t, ok)
	require.EqualValues(t, 4, del.GetExpectedRevision())
	require.NotEmpty(t, del.GetRequestId())

	require.Equal(t, 0, r.run("events", "--plane", "work,task", "--cursor", "c9").code)
	watch, ok := r.planes.last.(*eventv1.WatchEventsRequest)
	require.True(t, ok)
	require.True(t, watch.GetStopAtEnd())
	require.False(t, watch.GetFromStart())
	require.Equal(t, []string{"work", "task"}, watch.GetPlanes())
}

func TestCredentials(t *testing.T) {
	r := newHarness(t)
	token := r.keys.Mint(rpc.Actor{Namespace: "acme", Principal: "olga", Role: rpc.RoleOperator})
	require.Equal(t, 0, r.run("agent", "list", "--token", token).code)
	require.Equal(t, "olga", r.planes.actor.Principal)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	t.Setenv("QUARTET_TOKEN_FILE", file)
	require.Equal(t, 0, r.run("agent", "list").code)
	require.Equal(t, "acme", r.planes.actor.Namespace)
	t.Setenv("QUARTET_TOKEN_FILE", "")
	require.NoError(t, os.Unsetenv("QUARTET_TOKEN_FILE"))
	t.Setenv("QUARTET_TOKEN", "wrong")
	s := r.run("agent", "list")
	require.Equal(t, 1, s.code)
	require.NotContains(t, s.err, "wrong")
	var out, errs bytes.Buffer
	t.Setenv("QUARTET_TOKEN", token)
	t.Setenv("QUARTET_ADDRESS", r.address)
	require.Equal(t, 0, Run(t.Context(), Servers{}, []string{"agent", "list"}, nil, &out, &errs), errs.String())
}

// A follower that loses its connection continues after the last event.
func TestX10_FollowersContinueAtTheirCursor(t *testing.T) {
	r := newHarness(t)
	var cursors []string
	r.planes.watch = func(req *eventv1.WatchEventsRequest,
		out grpc.ServerStreamingServer[eventv1.WatchEventsResponse],
	) error {
		cursors = append(cursors, req.GetCursor())
		switch len(cursors) {
		case 1:
			if err := out.Send(eventOf("c1", "work_item_created")); err != nil {
				return err
			}
			return fault.NotReady.New("stops")
		case 2:
			if err := out.Send(&eventv1.WatchEventsResponse{HeartbeatCursor: "c2"}); err != nil {
				return err
			}
			return fault.NotReady.New("stops again")
		}
		return out.Send(eventOf("c3", "work_item_picked"))
	}
	s := r.run("events", "-f", "--from-start")
	require.Equal(t, 0, s.code, s.err)
	require.Equal(t, []string{"", "c1", "c2"}, cursors)
	require.Equal(t, 2, strings.Count(s.err, "connection lost"))
	require.Equal(t, 2, strings.Count(s.err, "connected again"))
	require.Len(t, strings.Split(strings.TrimSpace(s.out), "\n"), 2)
}

// firstWriteBuffer is a buffer that closes first at the first write.
type firstWriteBuffer struct {
	bytes.Buffer
	once  sync.Once
	first chan struct{}
}

func (s *firstWriteBuffer) Write(b []byte) (int, error) {
	defer s.once.Do(func() { close(s.first) })
	return s.Buffer.Write(b)
}

// sendOne returns a watch that sends one event and then waits for its client to leave.
func sendOne(event *eventv1.WatchEventsResponse) func(*eventv1.WatchEventsRequest,
	grpc.ServerStreamingServer[eventv1.WatchEventsResponse]) error {
	return func(_ *eventv1.WatchEventsRequest, out grpc.ServerStreamingServer[eventv1.WatchEventsResponse]) error {
		if err := out.Send(event); err != nil {
			return err
		}
		<-out.Context().Done()
		return out.Context().Err()
	}
}

// A follower survives a restart of the server: connections are refused for a while, and
// the stream continues after the cursor (SPEC X10).
func TestX10_FollowersSurviveARestart(t *testing.T) {
	r := newHarness(t)
	r.planes.watch = sendOne(eventOf("c0", "work_item_created"))
	out := &firstWriteBuffer{first: make(chan struct{})}
	ended := make(chan result, 1)
	go func() {
		var errs bytes.Buffer
		code := Run(t.Context(), Servers{}, []string{"--address", r.address, "events", "-f"}, nil, out, &errs)
		ended <- result{code, out.String(), errs.String()}
	}()
	<-out.first
	r.server.Stop()
	next := &harness{t: t, keys: r.keys, planes: &planes{}}
	var cursor string
	next.planes.watch = func(req *eventv1.WatchEventsRequest,
		out grpc.ServerStreamingServer[eventv1.WatchEventsResponse],
	) error {
		cursor = req.GetCursor()
		return out.Send(eventOf("c1", "work_item_picked"))
	}
	next.serve(r.address)
	s := <-ended
	require.Equal(t, 0, s.code, s.err)
	require.Equal(t, "c0", cursor)
	require.Equal(t, 1, strings.Count(s.err, "connection lost"), "an outage is reported once: %s", s.err)
	require.Contains(t, s.out, "work_item_picked")
}

// A refusal ends a follower, and so does a server that was never reachable.
func TestX10_FollowersEndWhereRetryingIsUseless(t *testing.T) {
	r := newHarness(t)
	r.planes.watch = func(_ *eventv1.WatchEventsRequest,
		out grpc.ServerStreamingServer[eventv1.WatchEventsResponse],
	) error {
		if err := out.Send(&eventv1.WatchEventsResponse{HeartbeatCursor: "c0"}); err != nil {
			return err
		}
		return fault.CursorOutOfRange.New("the cursor is of another installation")
	}
	require.Equal(t, 2, r.run("events", "-f").code)
	r.planes.watch = nil
	r.address = "127.0.0.1:1"
	require.Equal(t, 5, r.run("events", "-f").code)
}

func TestX10_TimeoutEndsAFollowerWithoutError(t *testing.T) {
	r := newHarness(t)
	r.planes.watch = sendOne(eventOf("c1", "work_item_picked"))
	for _, line := range []string{
		"events -f --timeout 100ms", "work board keeper --watch --timeout 100ms",
		"explain keeper --follow --timeout 100ms",
	} {
		s := r.run(strings.Fields(line)...)
		require.Equal(t, 0, s.code, "%s: %s", line, s.err)
		require.NotEmpty(t, s.out)
		require.Empty(t, s.err)
	}
}

// The queue is drawn again only if it has another revision.
func TestW9_WatchedQueueIsDrawnPerRevision(t *testing.T) {
	r := newHarness(t)
	r.planes.watch = func(_ *eventv1.WatchEventsRequest,
		out grpc.ServerStreamingServer[eventv1.WatchEventsResponse],
	) error {
		for _, revision := range []int64{0, 7, 7, 8} {
			before := r.queueReads(revision)
			r.planes.mu.Lock()
			r.planes.revision = revision
			r.planes.mu.Unlock()
			if err := out.Send(eventOf(fmt.Sprint("c", revision), "work_item_updated")); err != nil {
				return err
			}
			if err := r.awaitQueueRead(revision, before); err != nil {
				return err
			}
		}
		return nil
	}
	s := r.run("work", "board", "keeper", "--watch")
	require.Equal(t, 0, s.code, s.err)
	require.Equal(t, []string{"revision 0", "revision 7", "revision 8"}, regexp.MustCompile(`revision \d+`).
		FindAllString(s.out, -1))
	require.NotContains(t, s.out, "\x1b", "a pipe is not cleared")
}

// --follow prints each decision when it is recorded.
func TestD6_ExplainFollows(t *testing.T) {
	r := newHarness(t)
	var types []string
	r.planes.watch = func(req *eventv1.WatchEventsRequest,
		out grpc.ServerStreamingServer[eventv1.WatchEventsResponse],
	) error {
		types = req.GetEventTypes()
		m := eventOf("c1", "decision_recorded")
		var err error
		m.Event.Payload,
			err = structpb.NewStruct(map[string]any{
			"decision": map[string]any{
				"action": "idle", "reason": "no_progress",
				"explanation": "idle: no_progress after 3 turns",
			},
		})
		if err != nil {
			return err
		}
		return out.Send(m)
	}
	s := r.run("explain", "keeper", "--follow")
	require.Equal(t, 0, s.code, s.err)
	require.Equal(t, []string{"decision_recorded"}, types)
	require.Contains(t, s.out, "From now on\n  2026-03-04 05:06:07  idle: no_progress after 3 turns\n")
}

// On a terminal the same output has colours.
func TestColours(t *testing.T) {
	var out bytes.Buffer
	p := output.NewColoured(&out)
	r := newHarness(t)
	e := must.Value(r.planes.Explain(t.Context(), nil))(t)
	agents.WriteExplanation(p, e)
	out.WriteString("\n")
	q := must.Value(r.planes.GetWorkQueue(t.Context(), nil))(t)
	work.DrawQueue(p, "keeper", q, at.AsTime().Add(time.Hour))
	require.NoError(t, p.Err())
	golden(t, "colours", strings.ReplaceAll(out.String(), "\x1b", "^"))
}

func TestServersShareTheirFlags(t *testing.T) {
	var served []string
	var dir string
	s := Servers{
		Flags: func(fs *pflag.FlagSet) { fs.StringVar(&dir, "data-dir", "default", "x") },
		Dev: func(_ context.Context, fs *pflag.FlagSet) error {
			require.True(t, fs.Changed("data-dir"))
			return nil
		},
		Serve: func(_ context.Context, services []string, fs *pflag.FlagSet) error {
			served = services
			require.False(t, fs.Changed("data-dir"))
			return fmt.Errorf("broken")
		},
	}
	var out, errs bytes.Buffer
	require.Equal(t, 0, Run(t.Context(), s, []string{"dev", "--data-dir", "/d"}, nil, &out, &errs))
	require.Equal(t, "/d", dir)
	require.Equal(t, 1, Run(t.Context(), s, []string{"serve", "work", "agent"}, nil, &out, &errs))
	require.Equal(t, []string{"work", "agent"}, served)
	require.Contains(t, errs.String(), "quartet: broken")
}
