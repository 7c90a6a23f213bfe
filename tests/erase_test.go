package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal/journaltest"
	"quartet/pkg/must"
	"quartet/pkg/natsd/blockfile"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/rpc"
	"quartet/services/app"
	"quartet/tests/proc"
)

// lived is an agent with something in each plane, each with its own text.
type lived struct{ id, text, item, task string }

// live makes an agent with something in each plane.
func live(t *testing.T, ctx context.Context, conn *grpc.ClientConn, id, text string) *lived {
	t.Helper()
	l := &lived{id: id, text: text}
	must.Value(agentv1.NewAgentServiceClient(conn).SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: id, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED, InitialMessage: "a message with " + text,
	}))(t)
	work, waiting := workv1.NewWorkServiceClient(conn), waitingv1.NewWaitingServiceClient(conn)
	for i := range 40 { // some of which are packed
		l.item = must.Value(work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: id, Objective: fmt.Sprintf("item %d with %s", i, text),
		}))(t).GetWorkItem().GetWorkItemId()
		if i < 36 {
			must.Value(work.CompleteWorkItem(ctx, &workv1.CompleteWorkItemRequest{AgentId: id, WorkItemId: l.item}))(t)
		}
	}
	trigger := must.Value(waiting.CreateExternalTrigger(ctx, &waitingv1.CreateExternalTriggerRequest{
		AgentId: id, Description: "a trigger with " + text,
	}))(t)
	must.Value(waiting.WaitFor(ctx, &waitingv1.WaitForRequest{
		AgentId: id, WorkItemId: l.item, Reason: "a wait with " + text, Wake: waitingv1.Wake_WAKE_EXTERNAL,
		Resource: trigger.GetTrigger().GetTriggerId(),
	}))(t)
	must.Value(waiting.CreateTimer(ctx, &waitingv1.CreateTimerRequest{
		AgentId: id, WorkItemId: l.item, After: durationpb.New(24 * time.Hour),
	}))(t)
	l.task = must.Value(taskv1.NewTaskServiceClient(conn).ExecCommand(ctx, &taskv1.ExecCommandRequest{
		AgentId: id, Command: &taskv1.CommandSpec{Cmd: "echo output with " + text},
		YieldTime: durationpb.New(30 * time.Second),
	}))(t).GetTask().GetTaskId()
	must.Value(boardv1.NewBoardServiceClient(conn).CreateBoard(ctx, &boardv1.CreateBoardRequest{
		SessionId: id, BoardId: "b", WalName: "b", Title: "a board with " + text, Steps: []*boardv1.StepInput{
			{StepId: "a", Title: "a step with " + text},
		},
	}))(t)
	must.Value(workv1.NewHomeServiceClient(conn).WriteFile(ctx, &workv1.WriteFileRequest{
		AgentId: id, Path: "notes.md", Text: "a file with " + text,
	}))(t)
	return l
}

// whole requires that all of an agent is there.
func (l *lived) whole(t *testing.T, ctx context.Context, conn *grpc.ClientConn) {
	t.Helper()
	list, err := workv1.NewWorkServiceClient(conn).ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: l.id})
	require.NoError(t, err)
	require.NotEmpty(t, list.GetWorkItems())
	item := must.Value(workv1.NewWorkServiceClient(conn).GetWorkItem(ctx, &workv1.GetWorkItemRequest{
		AgentId: l.id, WorkItemId: l.item,
	}))(t)
	require.Contains(t, item.GetWorkItem().GetObjective(), l.text)
	waits, err := waitingv1.NewWaitingServiceClient(conn).ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: l.id})
	require.NoError(t, err)
	require.Len(t, waits.GetWaits(), 1)
	boards, err := boardv1.NewBoardServiceClient(conn).ListBoards(ctx, &boardv1.ListBoardsRequest{SessionId: l.id})
	require.NoError(t, err)
	require.Len(t, boards.GetBoards(), 1)
	out := must.Value(taskv1.NewTaskServiceClient(conn).GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{
		AgentId: l.id, TaskId: l.task,
	}))(t)
	require.Contains(t, fmt.Sprint(out), l.text)
}

// filesWith returns the files below a directory in which one of some texts is, compressed or not.
func filesWith(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		all := raw
		switch {
		case strings.HasSuffix(path, ".frames"):
			all = append(all, journaltest.Decompressed(raw)...)
		case strings.HasSuffix(path, ".blk") && strings.Contains(path, "quartet-snapshot-"):
			stream := filepath.Base(filepath.Dir(filepath.Dir(path)))
			var index int
			_, _ = fmt.Sscanf(filepath.Base(path), "%d.blk", &index)
			_, _ = blockfile.Read(stream, index, raw, []string{"quartet.snapshot."}, func(r blockfile.Record) error {
				if plain, err := s2.Decode(nil, r.Body); err == nil {
					all = append(all, plain...)
				}
				return nil
			})
		}
		for _, text := range texts {
			// The audit log keeps whose deletion was asked for, and nothing else of it.
			all = bytes.ReplaceAll(all, fmt.Appendf(nil, `"target":{"agent_id":"%s"}`, text), nil)
			if i := bytes.Index(all, []byte(text)); i >= 0 {
				found = append(found, fmt.Sprintf("%s: %q", strings.TrimPrefix(path, dir),
					all[max(0, i-60):min(len(all), i+60)]))
				break
			}
		}
		return nil
	})
	return found
}

// TestA8_ErasedAgent deletes one of two agents. After erase-after nothing of it is in any file of the data directory or
// of a backup, the other one is whole, and everything that is left is intact.
func TestA8_ErasedAgent(t *testing.T) {
	t.Parallel() // most of it is waiting
	bin, dir := binary(t), t.TempDir()
	data := filepath.Join(dir, "data")
	srv := must.Value(proc.NewQuartet(bin, data, "", "--erase-after", "2s"))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	t.Cleanup(func() { _ = srv.Kill() })
	dial := func() *grpc.ClientConn {
		require.NoError(t, srv.Start(ctx))
		conn := dial(t, srv.GRPC)
		return conn
	}
	quartet := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	conn := dial()
	agents := agentv1.NewAgentServiceClient(conn)
	ada, bob := live(t, ctx, conn, "agent-ada-7319", "ada's secret 5520"),
		live(t, ctx, conn, "agent-bob-1137", "bob's secret 8841")
	texts := []string{ada.id, ada.text}
	require.NotEmpty(t, filesWith(t, data, texts...))
	must.Value(agents.DeleteAgent(ctx, &agentv1.DeleteAgentRequest{AgentId: ada.id}))(t)
	var left []string
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); <-time.After(500 * time.Millisecond) {
		if left = filesWith(t, data, texts...); len(left) == 0 {
			break
		}
	}
	require.Empty(t, left)
	bob.whole(t, ctx, conn)
	refused := func() {
		t.Helper()
		_, err := agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: ada.id, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		})
		require.ErrorIs(t, fault.From(err), fault.AlreadyExists)
		require.Error(t, must.Err(workv1.NewWorkServiceClient(conn).CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: ada.id, Objective: "x",
		})))
	}
	refused()

	// A child that was erased is not made again by a late repetition of the call that spawned it.
	spawn := func() string {
		return must.Value(agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			ParentAgentId: bob.id, RequestId: "once", InitialMessage: "look",
		}))(t).GetAgentId()
	}
	gone := func(id string) bool {
		_, err := agents.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: id})
		return err != nil && errors.Is(fault.From(err), fault.NotFound)
	}
	child := spawn()
	must.Value(agents.DeleteAgent(ctx, &agentv1.DeleteAgentRequest{AgentId: child}))(t)
	require.Eventually(t, func() bool { return gone(child) }, 2*time.Minute, 100*time.Millisecond)
	require.Equal(t, child, spawn(), "the first answer")
	require.True(t, gone(child))
	file := filepath.Join(dir, "all.backup")
	quartet("backup", file, "--address", srv.GRPC)

	require.NoError(t, srv.Interrupt(ctx))
	require.Contains(t, quartet("verify", "--data-dir", data), "erased:")
	conn = dial()
	agents = agentv1.NewAgentServiceClient(conn)
	bob.whole(t, ctx, conn)
	refused()
	require.NoError(t, srv.Interrupt(ctx))
	require.NoError(t, os.Rename(data, filepath.Join(dir, "old")))
	quartet("restore", file, "--data-dir", data, "--key-file", filepath.Join(dir, "old", "key"))
	require.Empty(t, filesWith(t, data, texts...), "a backup has nothing of it")
	key := must.Value(os.ReadFile(filepath.Join(dir, "old", "key")))(t)
	if _, err := os.Stat(filepath.Join(data, "key")); err != nil {
		require.NoError(t, os.WriteFile(filepath.Join(data, "key"), key, 0o600))
	}
	conn = dial()
	agents = agentv1.NewAgentServiceClient(conn)
	bob.whole(t, ctx, conn)
	refused()
	require.NoError(t, srv.Interrupt(ctx))
	quartet("verify", "--data-dir", data)
}

// TestA8_ErasedNamespace: the real command deletes all agents of one of two namespaces and revokes its keys. After
// erase-after nothing that they had is in any file; the other namespace has everything.
func TestA8_ErasedNamespace(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	h := newHouse(t, func(cfg *app.Config) {
		cfg.EraseAfter, cfg.SegmentSize, cfg.SnapshotSize = 2*time.Second, 64,
			16
	})
	acme, globex := newTenant(t, h, "acme"), newTenant(t, h, "globex")
	bin := binary(t)
	erase := func(token string, args ...string) (string, error) {
		cmd := exec.CommandContext(soon(t), bin, append([]string{"--address", h.cfg.GRPCAddr, "erase", "-o", "json"},
			args...)...)
		cmd.Env = append(os.Environ(), "QUARTET_TOKEN="+token)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	texts := func(te *tenant) (all []string) {
		for _, what := range []string{
			"message", "objective", "todo", "condition", "trigger", "timer", "file", "output",
			"board", "step", "summary", "instruction", "round",
		} {
			all = append(all, what+" "+te.mark)
		}
		return all
	}
	admin := acme.tokens[rpc.RoleAdmin]
	for want, refused := range map[string]func() (string, error){
		"give --yes":           func() (string, error) { return erase(admin, "acme") },
		"is of namespace acme": func() (string, error) { return erase(admin, "globex", "--yes") },
		"PERMISSION_DENIED":    func() (string, error) { return erase(acme.tokens[rpc.RoleOperator], "acme", "--yes") },
		"NAMESPACE is missing": func() (string, error) { return erase(admin, "--yes") },
	} {
		out, err := refused()
		require.Error(t, err, want)
		require.Contains(t, out, want)
	}
	data := h.cfg.DataDir
	require.NotEmpty(t, filesWith(t, data, texts(acme)...))

	out, err := erase(admin, "acme", "--yes")
	require.NoError(t, err, out)
	require.JSONEq(t, fmt.Sprintf(`{"namespace":"acme","agentsDeleted":2,"keysRevoked":%d,"adminKeysLeft":1}`,
		len(attackers)-1), out)
	out, err = erase(admin, "acme", "--yes")
	require.NoError(t, err, out)
	require.JSONEq(t, `{"namespace":"acme","agentsDeleted":0,"keysRevoked":0,"adminKeysLeft":1}`, out)
	require.Equal(t, http.StatusUnauthorized, h.rest(t, acme.tokens[rpc.RoleOperator], http.MethodGet, "/v1/agents",
		"").status)

	var left []string
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); <-time.After(500 * time.Millisecond) {
		if left = filesWith(t, data, texts(acme)...); len(left) == 0 {
			break
		}
	}
	require.Empty(t, left)
	require.NotEmpty(t, filesWith(t, data, texts(globex)...))
	globex.harvest(t)
}
