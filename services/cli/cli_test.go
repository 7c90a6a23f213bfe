package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
)

// TestTables shows every command's answer to a person.
func TestTables(t *testing.T) {
	r := newRig(t)
	for plane, lines := range map[string][]string{
		"agent":   {"spawn keeper", "get keeper", "list", "list --parent x", "say keeper hello", "messages keeper", "turns keeper"},
		"work":    {"create keeper objective", "list keeper", "get keeper wi_1", "get keeper wi_2", "pick keeper wi_1", "update keeper wi_1 --unblock", "complete keeper wi_1", "queue keeper"},
		"wait":    {"for keeper reason --wake external", "create keeper condition", "cancel keeper wt_1", "list keeper"},
		"trigger": {"create keeper", "cancel keeper trg_1", "list keeper", "deliver http://x/v1/triggers/qtr_x --data hi"},
		"timer":   {"create keeper look --after 5m", "cancel keeper tmr_1", "list keeper"},
		"task":    {"exec keeper --shell test", "exec keeper --shell build", "exec keeper --shell slow", "list keeper", "get keeper tsk_1", "output keeper tsk_1", "output -f keeper tsk_1", "input keeper tsk_1 yes", "input keeper tsk_1 no", "stop keeper tsk_1"},
		"explain": {"keeper"},
		"events":  {""},
	} {
		t.Run(plane, func(t *testing.T) {
			r.t = t
			var all strings.Builder
			for _, line := range lines {
				s := r.run(append([]string{plane}, strings.Fields(line)...)...)
				fmt.Fprintf(&all, "$ quartet %s\n%s", strings.TrimSpace(plane+" "+line), s.out)
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

// TestJSONIsOneDocumentOnStdout holds for every command that answers once.
func TestJSONIsOneDocumentOnStdout(t *testing.T) {
	r := newRig(t)
	for _, line := range []string{
		"agent spawn keeper", "agent get keeper", "agent list", "agent list --parent x", "agent say keeper hi", "agent messages keeper", "agent turns keeper",
		"work create keeper x", "work list keeper", "work get keeper wi_1", "work pick keeper wi_1", "work update keeper wi_1 --unblock", "work complete keeper wi_1", "work queue keeper",
		"wait for keeper r --wake operator", "wait create keeper c", "wait cancel keeper wt_1", "wait list keeper",
		"trigger create keeper", "trigger cancel keeper t", "trigger list keeper", "trigger deliver x",
		"timer create keeper x --after 1s", "timer cancel keeper t", "timer list keeper",
		"task exec keeper --shell test", "task list keeper", "task get keeper t", "task output keeper t", "task input keeper t yes", "task stop keeper t", "explain keeper",
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
	r := newRig(t)
	for _, c := range []struct {
		err  *fault.Error
		code int
		says string
	}{
		{fault.NotFound.New(`agent "keeper" does not exist`), 3, "NOT_FOUND: agent \"keeper\" does not exist"},
		{fault.RevisionConflict.New("it moved on", "revision", "9"), 4, "mend: read it again; it stands at revision 9"},
		{fault.WorkItemCompleted.New("it is completed"), 4, "WORK_ITEM_COMPLETED"},
		{fault.RequestIDReused.New("used"), 4, "mend: leave --request-id out"},
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
		require.Contains(t, s.err, c.says)
		require.Empty(t, s.out, "nothing but answers on stdout")
	}
	r.planes.fail(nil)
	r.address = "127.0.0.1:1"
	s := r.run("agent", "list")
	require.Equal(t, 5, s.code)
	require.Contains(t, s.err, "quartet dev")
}

func TestUsageErrors(t *testing.T) {
	r := newRig(t)
	for line, says := range map[string]string{
		"agnt":                                   `did you mean "agent"`,
		"agent gt":                               "is not a command of",
		"agent get":                              "AGENT is missing",
		"agent get a b":                          "one argument too many",
		"agent list x":                           "takes no arguments",
		"agent get a --colour":                   "unknown flag",
		"agent spawn":                            "AGENT is missing",
		"agent spawn a b":                        "one AGENT",
		"agent get a -o yaml":                    "use table or json",
		"work create a":                          "OBJECTIVE is missing",
		"work list a --filter odd":               "use one of all, open",
		"wait for a r":                           "--wake is missing",
		"wait for a r --wake rain":               "use one of operator_input",
		"wait for a r --wake timer --after soon": "write 90s, 5m",
		"timer create a d --at tomorrow":         "RFC 3339",
		"task exec a":                            "either --shell",
		"task exec a --shell x -- y":             "either --shell",
		"agent say a @" + filepath.Join("no", "such"): "no such file",
		"agent get a --address %zz://":                "--address",
		"serve":                                       "SERVICE is missing",
	} {
		s := r.run(strings.Fields(line)...)
		require.Equal(t, 2, s.code, "%s: %s", line, s.err)
		require.Contains(t, s.err, says, line)
		require.Contains(t, s.err, "--help")
		require.Empty(t, s.out)
	}
}

// TestEveryCommandTeaches wants a short help and an example of each.
func TestEveryCommandTeaches(t *testing.T) {
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
	r := newRig(t)
	s := r.run("--help")
	require.Equal(t, 0, s.code)
	require.Contains(t, s.out, "Exit codes:")
	require.Equal(t, "1.2.3\n", r.run("version").out)
	require.Contains(t, r.run("completion", "bash").out, "quartet")
}

func TestRequestsSayWhatWasTyped(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(t.TempDir(), "plan.md")
	require.NoError(t, os.WriteFile(file, []byte("# Plan"), 0o600))
	require.Equal(t, 0, r.run("work", "create", "keeper", "x", "--plan", "@"+file, "--status", "needs-input", "--todo", "[x] a", "--todo", "[>]b", "--todo", "c").code)
	create, ok := r.planes.last.(*workv1.CreateWorkItemRequest)
	require.True(t, ok)
	require.Equal(t, "# Plan", create.GetPlan())
	require.Equal(t, workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT, create.GetPlanStatus())
	require.Regexp(t, "^cli_", create.GetRequestId(), "a mutation always has a request id")
	var list []string
	for _, it := range create.GetTodoList() {
		list = append(list, it.GetText()+" "+short(it.GetState()))
	}
	require.Equal(t, []string{"a completed", "b in_progress", "c pending"}, list)

	require.Equal(t, 0, r.run("work", "update", "keeper", "wi_1", "--todo", "", "--blocked-by", "", "--if-revision", "7", "--recheck", "2026-02-02T08:00:00Z").code)
	update, ok := r.planes.last.(*workv1.UpdateWorkItemRequest)
	require.True(t, ok)
	require.NotNil(t, update.GetTodoList())
	require.Empty(t, update.GetTodoList().GetItems())
	require.NotNil(t, update.BlockedBy, "an empty blocker is for the server to refuse")
	require.Nil(t, update.Objective)
	require.EqualValues(t, 7, update.GetExpectedRevision())
	require.Equal(t, "2026-02-02T08:00:00Z", update.GetRecheckAt().AsTime().Format(time.RFC3339))

	require.Equal(t, 0, r.runIn("from stdin", "agent", "say", "keeper", "-", "--priority", "interject").code)
	say, ok := r.planes.last.(*agentv1.EnqueueMessageRequest)
	require.True(t, ok)
	require.Equal(t, "from stdin", say.GetText())
	require.Equal(t, agentv1.Priority_PRIORITY_INTERJECT, say.GetPriority())

	require.Equal(t, 0, r.run("events", "--plane", "work,task", "--cursor", "c9").code)
	watch, ok := r.planes.last.(*eventv1.WatchEventsRequest)
	require.True(t, ok)
	require.True(t, watch.GetStopAtEnd())
	require.False(t, watch.GetFromStart())
	require.Equal(t, []string{"work", "task"}, watch.GetPlanes())
}

func TestCredentials(t *testing.T) {
	r := newRig(t)
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

func TestX10_FollowersGoOnWhereTheyWere(t *testing.T) {
	r := newRig(t)
	var asked []string
	r.planes.watch = func(req *eventv1.WatchEventsRequest, out grpc.ServerStreamingServer[eventv1.WatchEventsResponse]) error {
		asked = append(asked, req.GetCursor())
		switch len(asked) {
		case 1:
			if err := out.Send(happened("c1", "work_item_created")); err != nil {
				return err
			}
			return fault.NotReady.New("stops")
		case 2:
			if err := out.Send(&eventv1.WatchEventsResponse{HeartbeatCursor: "c2"}); err != nil {
				return err
			}
			return fault.NotReady.New("stops again")
		}
		return out.Send(happened("c3", "work_item_picked"))
	}
	s := r.run("events", "-f", "--from-start")
	require.Equal(t, 0, s.code, s.err)
	require.Equal(t, []string{"", "c1", "c2"}, asked)
	require.Equal(t, 2, strings.Count(s.err, "connection lost"))
	require.Len(t, strings.Split(strings.TrimSpace(s.out), "\n"), 2)
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

func TestShortenedTextIsSafeAndFits(t *testing.T) {
	require.Equal(t, "a b", brief("a\n b", 10))
	require.Equal(t, "リリ…", brief("リリース", 5))
	require.LessOrEqual(t, width(brief(strings.Repeat("語x", 100), 40)), 40)
	require.Equal(t, "\uFFFD[31m", printable("\x1b[31m"))
	require.Equal(t, "a\uFFFDb", printable("a\u202eb"))
	require.Equal(t, 1, width("e\u0301"))
	d, err := span("x", "2d")
	require.NoError(t, err)
	require.Equal(t, 48*time.Hour, d.AsDuration())
}
