package cli_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/cli"
	"quartet/tests/dev"
)

// typed runs the command line against a server with text on stdin.
func typed(t *testing.T, s *dev.Server, stdin string, args ...string) (code int, out, errs string) {
	t.Setenv("COLUMNS", "200")
	var o, e bytes.Buffer
	code = cli.Run(dev.Within(t), cli.Servers{}, append(args, "--address", s.Cfg.GRPCAddr), strings.NewReader(stdin),
		&o, &e)
	return code, o.String(), e.String()
}

// The beginning of an id suffices where it is the only one that begins so, and never for a name where something is
// deleted.
func TestBeginningsOfIDs(t *testing.T) {
	s := dev.Start(t)
	for _, name := range []string{"keeper", "kestrel", "other", "other-2"} {
		code, _, errs := quartet(t, s, "agent", "spawn", name)
		require.Zero(t, code, errs)
	}
	item := must.Value(s.Work.CreateWorkItem(dev.Within(t), &workv1.CreateWorkItemRequest{
		AgentId: "keeper", RequestId: "r1", Objective: "Release 1.4",
	}))(t).GetWorkItem().GetWorkItemId()

	code, out, errs := quartet(t, s, "work", "get", "keeper", item[:len(item)-5])
	require.Zero(t, code, errs)
	require.Contains(t, out, item)
	require.Contains(t, errs, item[:len(item)-5]+" is "+item)

	code, out, errs = quartet(t, s, "work", "get", "keep", "wi_")
	require.Zero(t, code, errs)
	require.Contains(t, out, "Release 1.4")
	require.Contains(t, errs, "keep is keeper")
	require.Contains(t, errs, "wi_ is "+item)

	code, _, errs = quartet(t, s, "work", "get", "keeper", item, "-o", "json")
	require.Zero(t, code)
	require.Empty(t, errs, "a whole id is said to nobody")

	code, out, errs = quartet(t, s, "agent", "get", "kes")
	require.Zero(t, code, errs)
	require.Contains(t, out, "kestrel")
	code, out, errs = quartet(t, s, "agent", "get", "other")
	require.Zero(t, code, errs)
	require.NotContains(t, errs, "other", "a name that exists is that name, although another one begins so")
	require.NotContains(t, out, "other-2")

	code, out, errs = quartet(t, s, "agent", "get", "ke")
	require.Equal(t, 2, code)
	require.Empty(t, out)
	require.Contains(t, errs, `"ke" is the beginning of several agents: keeper, kestrel`)
	code, _, errs = quartet(t, s, "agent", "get", "nobody")
	require.Equal(t, 3, code)
	require.Contains(t, errs, "NOT_FOUND")

	second := must.Value(s.Work.CreateWorkItem(dev.Within(t), &workv1.CreateWorkItemRequest{
		AgentId: "keeper", RequestId: "r2", Objective: "Release 1.5",
	}))(t)
	code, _, errs = quartet(t, s, "work", "complete", "keeper", "wi_")
	require.Equal(t, 2, code)
	require.Contains(t, errs, item)
	require.Contains(t, errs, second.GetWorkItem().GetWorkItemId())
	got, err := s.Work.GetWorkItem(dev.Within(t), &workv1.GetWorkItemRequest{AgentId: "keeper", WorkItemId: item})
	require.NoError(t, err)
	require.Nil(t, got.GetWorkItem().GetCompletedAt())

	code, _, errs = quartet(t, s, "agent", "delete", "kes", "--yes")
	require.Equal(t, 2, code, errs)
	require.Contains(t, errs, "did you mean kestrel?")
	kestrel := must.Value(s.Agents.GetAgent(dev.Within(t), &agentv1.GetAgentRequest{AgentId: "kestrel"}))(t)
	require.Equal(t, agentv1.Lifecycle_LIFECYCLE_ACTIVE, kestrel.GetAgent().GetLifecycle())

	code, _, errs = typed(t, s, "from stdin", "agent", "say", "kes", "-")
	require.Zero(t, code, errs)
	messages := must.Value(s.Agents.ListMessages(dev.Within(t), &agentv1.ListMessagesRequest{AgentId: "kestrel"}))(t)
	require.Len(t, messages.GetMessages(), 1)
	require.Equal(t, "from stdin", messages.GetMessages()[0].GetText(),
		"what was read for the first call is there for the second")
}

// A shell completes agents, items, boards, flags and the values of enums; without a server it completes nothing and
// shows no error.
func TestCompletion(t *testing.T) {
	s := dev.Start(t)
	for _, args := range [][]string{
		{"agent", "spawn", "keeper"},
		{"agent", "spawn", "kestrel"},
		{"work", "create", "keeper", "Release 1.4"},
		{"board", "apply", "keeper", "testdata/board.yaml"},
	} {
		code, _, errs := quartet(t, s, args...)
		require.Zero(t, code, errs)
	}
	complete := func(address string, words ...string) string {
		var out, errs bytes.Buffer
		args := append([]string{"__complete", "--address", address}, words...)
		require.Zero(t, cli.Run(dev.Within(t), cli.Servers{}, args, nil, &out, &errs), errs.String())
		return out.String()
	}
	// Completion gives up after a moment, which a busy machine may need for other things.
	completes := func(want string, words ...string) {
		t.Helper()
		matches := regexp.MustCompile(want)
		require.Eventually(t, func() bool { return matches.MatchString(complete(s.Cfg.GRPCAddr, words...)) },
			time.Minute, 10*time.Millisecond, "%s after %q", want, words)
	}
	completes(`(?m)^keeper\t(?s:.*)^kestrel\t`, "agent", "get", "ke")
	require.NotContains(t, complete(s.Cfg.GRPCAddr, "agent", "get", "kes"), "keeper")
	completes(`(?m)^wi_[0-9a-z]{26}\t.*Release 1\.4$`, "work", "get", "keeper", "")
	completes(`(?m)^wi_[0-9a-z]{26}\t`, "agent", "conversation", "keeper", "--item", "wi")
	completes(`(?m)^keeper/\t`, "board", "show", "kee")
	completes(`(?m)^keeper/build\t`, "board", "show", "keeper/")
	completes(`release`, "board", "step", "keeper/build", "")
	completes(`completed`, "board", "step", "keeper/build", "release", "")
	completes(`waiting_for_operator`, "work", "list", "keeper", "--filter", "")
	completes(`(?m)^board$`, "events", "--plane", "")
	completes(`(?m)^json$`, "agent", "list", "-o", "")
	completes(`CompleteWorkItem`, "agent", "tools", "keeper", "Comp")
	require.Equal(t, ":4\n", complete("127.0.0.1:1", "agent", "get", "ke"))
}
