package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/proc"
)

// damageable is a server with something in the journal of every plane.
type damageable struct {
	t      *testing.T
	ctx    context.Context //nolint:containedctx // of the test
	srv    *proc.Quartet
	agents agentv1.AgentServiceClient
	work   workv1.WorkServiceClient
	key    string

	waiting waitingv1.WaitingServiceClient
	boards  boardv1.BoardServiceClient
	tasks   taskv1.TaskServiceClient
}

func newDamageable(t *testing.T, args ...string) *damageable {
	srv := must.Value(proc.NewQuartet(binary(t), filepath.Join(t.TempDir(), "data"), "", args...))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	t.Cleanup(cancel)
	d := &damageable{t: t, ctx: ctx, srv: srv}
	d.start()
	t.Cleanup(func() { _ = srv.Kill() })
	conn := dial(t, srv.GRPC)
	d.agents, d.work = agentv1.NewAgentServiceClient(conn), workv1.NewWorkServiceClient(conn)
	d.waiting, d.boards, d.tasks = waitingv1.NewWaitingServiceClient(conn), boardv1.NewBoardServiceClient(conn),
		taskv1.NewTaskServiceClient(conn)
	must.Value(d.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: "keeper", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	for i := range 20 {
		item := d.item(fmt.Sprintf("first %d", i))
		must.Value(d.waiting.CreateTimer(ctx, &waitingv1.CreateTimerRequest{
			AgentId: "keeper", WorkItemId: item, After: durationpb.New(24 * time.Hour),
		}))(t)
		d.key = must.Value(identityv1.NewIdentityServiceClient(conn).CreateKey(ctx, &identityv1.CreateKeyRequest{
			Name: "viewer", Role: identityv1.Role_ROLE_OPERATOR,
		}))(t).GetSecret()
		must.Value(d.tasks.ExecCommand(ctx, &taskv1.ExecCommandRequest{AgentId: "keeper", Command: &taskv1.CommandSpec{
			Cmd: "true",
		}, YieldTime: durationpb.New(30 * time.Second)}))(t)
		id := fmt.Sprintf("b%d", i)
		must.Value(d.boards.CreateBoard(ctx, &boardv1.CreateBoardRequest{
			SessionId: "keeper", BoardId: id, WalName: id,
			Title: id, Steps: []*boardv1.StepInput{{StepId: "a", Title: "a"}},
		}))(t)
	}
	return d
}

func (d *damageable) item(title string) string {
	d.t.Helper()
	r, err := d.work.CreateWorkItem(d.ctx, &workv1.CreateWorkItemRequest{AgentId: "keeper", Objective: title})
	require.NoError(d.t, err)
	return r.GetWorkItem().GetWorkItemId()
}

// withKey returns the status of a request with an API key.
func (d *damageable) withKey() int {
	d.t.Helper()
	req := must.Value(http.NewRequestWithContext(d.ctx, http.MethodGet, "http://"+d.srv.HTTP+"/v1/whoami", nil))(d.t)
	req.Header.Set("Authorization", "Bearer "+d.key)
	resp := must.Value(http.DefaultClient.Do(req))(d.t)
	require.NoError(d.t, resp.Body.Close())
	return resp.StatusCode
}

// start starts the server, which may never be ready, and returns which journals it says are damaged.
func (d *damageable) start() []string {
	d.t.Helper()
	var ready struct{ Damaged []string }
	d.srv.Ready = func(ctx context.Context) bool {
		req := must.Value(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.srv.HTTP+"/readyz", nil))(d.t)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		ready.Damaged = nil
		return json.NewDecoder(resp.Body).Decode(&ready) == nil &&
			(resp.StatusCode == http.StatusOK || len(ready.Damaged) > 0)
	}
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	require.NoError(d.t, d.srv.Start(ctx))
	return ready.Damaged
}

// ready returns what the server, which runs, says is damaged.
func (d *damageable) ready() []string {
	d.t.Helper()
	req := must.Value(http.NewRequestWithContext(d.ctx, http.MethodGet, "http://"+d.srv.HTTP+"/readyz", nil))(d.t)
	resp := must.Value(http.DefaultClient.Do(req))(d.t)
	defer resp.Body.Close()
	require.Equal(d.t, http.StatusOK, resp.StatusCode)
	var ready struct{ Damaged []string }
	require.NoError(d.t, json.NewDecoder(resp.Body).Decode(&ready))
	return ready.Damaged
}

// quiet waits until nothing is written any more.
func (d *damageable) quiet() {
	d.t.Helper()
	before := ""
	require.Eventually(d.t, func() bool {
		now := ""
		files := must.Value(filepath.Glob(filepath.Join(d.srv.DataDir, "witness", "*")))(d.t)
		for _, file := range files {
			now += string(must.Value(os.ReadFile(file))(d.t))
		}
		same := now == before
		before = now
		return same
	}, time.Minute, 500*time.Millisecond)
}

// stream returns the directory of a plane's journal.
func stream(dataDir, plane string) string {
	return filepath.Join(dataDir, "nats", "jetstream", "$G", "streams", jetlog.Place{Plane: plane}.Stream())
}

// block returns the newest file of a plane's journal with its content.
func block(t *testing.T, dataDir, plane string) (string, []byte) {
	files := must.Value(filepath.Glob(filepath.Join(stream(dataDir, plane), "msgs", "*.blk")))(t)
	require.NotEmpty(t, files)
	path := slices.Max(files)
	return path, must.Value(os.ReadFile(path))(t)
}

// TestR10_DamageIsNamedAndContained removes, rolls back, cuts and changes the journal of every plane, in files of a
// server that was killed and of one that was stopped. The server starts, names the journal, refuses what is in it, and
// serves the rest. Then the journal is repaired: a changed bit without any other copy, what is missing from another
// one.
func TestR10_DamageIsNamedAndContained(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	d := newDamageable(t)
	require.NoError(t, d.srv.Kill())
	older := filepath.Join(t.TempDir(), "older")
	require.NoError(t, os.CopyFS(older, os.DirFS(d.srv.DataDir)))
	require.Empty(t, d.start())
	for i := range 20 {
		d.item(fmt.Sprintf("PAID INVOICE %d", i))
		must.Value(d.agents.SpawnAgent(d.ctx, &agentv1.SpawnAgentRequest{
			AgentId: fmt.Sprintf("agent-%d", i),
			Preset:  agentv1.Preset_PRESET_PUBLIC_NAMED,
		}))(t)
	}
	harm := map[string]func(plane string){
		"removed": func(plane string) { require.NoError(t, os.RemoveAll(stream(d.srv.DataDir, plane))) },
		"rolled back": func(plane string) {
			require.NoError(t, os.RemoveAll(stream(d.srv.DataDir, plane)))
			require.NoError(t, os.CopyFS(stream(d.srv.DataDir, plane), os.DirFS(stream(older, plane))))
		},
		"cut": func(plane string) {
			path, b := block(t, d.srv.DataDir, plane)
			require.NoError(t, os.Truncate(path, int64(len(b)-100)))
		},
		"a bit at the beginning": func(plane string) { flip(t, d.srv.DataDir, plane, 0.2) },
		"a bit at the end":       func(plane string) { flip(t, d.srv.DataDir, plane, 0.97) },
	}
	hows := slices.Sorted(maps.Keys(harm))
	for e, end := range []string{"killed", "stopped"} {
		if end == "killed" {
			d.quiet() // the last frame is one that was acknowledged
			require.NoError(t, d.srv.Kill())
		} else {
			require.Empty(t, d.start())
			require.NoError(t, d.srv.Interrupt(d.ctx))
		}
		whole := filepath.Join(t.TempDir(), end)
		require.NoError(t, os.CopyFS(whole, os.DirFS(d.srv.DataDir)))
		restore := func() {
			require.NoError(t, os.RemoveAll(d.srv.DataDir))
			require.NoError(t, os.CopyFS(d.srv.DataDir, os.DirFS(whole)))
		}
		for p, plane := range []string{"agent", "work", "task", "waiting", "board", "identity", "audit"} {
			for h, how := range hows {
				if !proc.Thorough() && (p+h+2*e)%len(hows) != 0 { // each plane and each harm, not each pair
					continue
				}
				do := harm[how]
				t.Run(end+"/"+plane+"/"+how, func(t *testing.T) {
					defer func(outer *testing.T) { d.t = outer }(d.t)
					d.t = t
					restore()
					do(plane)
					if plane == "work" {
						d.verify(plane)
					}
					damaged := d.start()
					require.Len(t, damaged, 1, damaged)
					require.True(t, strings.HasPrefix(damaged[0], "the journal of "+plane+"/0 is damaged"), damaged[0])
					_, err := d.agents.SpawnAgent(d.ctx, &agentv1.SpawnAgentRequest{
						AgentId: "another",
						Preset:  agentv1.Preset_PRESET_PUBLIC_NAMED,
					})
					refused(t, plane == "agent", err)
					require.Equal(t, map[bool]int{false: http.StatusOK, true: http.StatusServiceUnavailable}[plane ==
						"identity"], d.withKey(), "a revocation may be lost")
					_, err = d.work.CreateWorkItem(d.ctx, &workv1.CreateWorkItemRequest{
						AgentId: "keeper", Objective: "go on",
					})
					refused(t, plane == "work" || plane == "agent", err)
					require.NoError(t, d.srv.Kill())

					var from []string
					if !strings.HasPrefix(how, "a bit") {
						r, code := d.repair()
						require.Equal(t, 1, code)
						require.Equal(t, "lost", r.of(plane).Status, r)
						require.NotEmpty(t, r.of(plane).Damage)
						from = []string{"--from-store", whole}
					}
					r, code := d.repair(append(from, "--apply")...)
					require.Zero(t, code, r)
					for _, j := range r.Journals {
						require.Equal(t, map[bool]string{false: "intact", true: "repairable"}[j.Partition == plane+
							"/0"], j.Status, j)
					}
					require.NotEmpty(t, r.of(plane).Copies)
					d.everythingIsThere(40)
				})
			}
		}
		restore()
	}
	require.Empty(t, d.start(), "whole again")
	list := must.Value(d.work.ListWorkItems(d.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", PageSize: 100}))(t)
	require.Len(t, list.GetWorkItems(), 40)
}

// repaired is what quartet repair prints.
type repaired struct {
	Journals []repairedJournal
	Replaced string
}

type repairedJournal struct {
	Partition, Status string
	Damage            []string
	Copies            map[string]int
	Loss              *struct {
		First  uint64   `json:"first_wal_seq"`
		Last   uint64   `json:"last_wal_seq"`
		Types  []string `json:"event_types"`
		Agents []string
		Items  []string `json:"work_items"`
		File   string
	}
	BeginsSeq    uint64 `json:"begins_seq"`
	BeginsWalSeq uint64 `json:"begins_wal_seq"`
}

// of returns the first partition of a plane.
func (r repaired) of(plane string) repairedJournal {
	return r.Journals[slices.IndexFunc(r.Journals, func(j repairedJournal) bool { return j.Partition == plane+"/0" })]
}

// repair runs quartet repair.
func (d *damageable) repair(args ...string) (r repaired, code int) {
	d.t.Helper()
	out, code := d.quartet(append([]string{"repair", "--data-dir", d.srv.DataDir, "-o", "json"}, args...)...)
	require.NoError(d.t, json.Unmarshal([]byte(out), &r), out)
	return r, code
}

// quartet runs a command and returns what it prints, and its exit code.
func (d *damageable) quartet(args ...string) (string, int) {
	d.t.Helper()
	cmd := exec.CommandContext(d.ctx, d.srv.Binary, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(d.t, err, &exit)
	}
	return string(out) + stderr.String(), cmd.ProcessState.ExitCode()
}

// everythingIsThere requires that no journal is damaged, that the keeper has n items, each once, with the timers of the
// first ones, and that all planes are served. It leaves the server killed.
func (d *damageable) everythingIsThere(n int) {
	d.t.Helper()
	out, code := d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Zero(d.t, code, out)
	require.Empty(d.t, d.start())
	defer func() { require.NoError(d.t, d.srv.Kill()) }()
	list := must.Value(d.work.ListWorkItems(d.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", PageSize: 100}))(d.t)
	titles := map[string]bool{}
	for _, item := range list.GetWorkItems() {
		titles[item.GetObjective()] = true
	}
	for i := range n / 2 {
		require.True(d.t, titles[fmt.Sprintf("first %d", i)], titles)
		require.True(d.t, titles[fmt.Sprintf("PAID INVOICE %d", i)], titles)
	}
	require.Len(d.t, list.GetWorkItems(), len(titles), "nothing is doubled")
	timers, err := d.waiting.ListTimers(d.ctx, &waitingv1.ListTimersRequest{AgentId: "keeper", PageSize: 100})
	require.NoError(d.t, err)
	require.Len(d.t, timers.GetTimers(), 20)
	boards := must.Value(d.boards.ListBoards(d.ctx, &boardv1.ListBoardsRequest{SessionId: "keeper", Limit: 100}))(d.t)
	require.Len(d.t, boards.GetBoards(), 20)
	require.Equal(d.t, http.StatusOK, d.withKey())
	must.Value(d.tasks.ExecCommand(d.ctx, &taskv1.ExecCommandRequest{AgentId: "keeper", Command: &taskv1.CommandSpec{
		Cmd: "true",
	}, YieldTime: durationpb.New(30 * time.Second)}))(d.t)
	d.item("after the repair")
}

// verify requires that quartet verify names the journal of a plane, and no other, and changes nothing.
func (d *damageable) verify(damaged string) {
	d.t.Helper()
	before := d.content()
	out, err := exec.CommandContext(d.ctx, d.srv.Binary, "verify", "--data-dir", d.srv.DataDir, "-o", "json").Output()
	var exit *exec.ExitError
	require.ErrorAs(d.t, err, &exit)
	require.Equal(d.t, 1, exit.ExitCode(), string(exit.Stderr))
	var found struct {
		Journals []struct {
			Partition string
			Damage    []string
		}
	}
	require.NoError(d.t, json.Unmarshal(out, &found), string(out))
	require.Len(d.t, found.Journals, 7)
	for _, j := range found.Journals {
		require.Equal(d.t, j.Partition == damaged+"/0", len(j.Damage) > 0, j)
		for _, text := range j.Damage {
			require.Contains(d.t, text, "the journal of "+damaged+"/0 is damaged")
		}
	}
	require.Equal(d.t, before, d.content())
}

// content returns the files of the data directory.
func (d *damageable) content() map[string]string {
	d.t.Helper()
	files := map[string]string{}
	require.NoError(d.t, filepath.WalkDir(d.srv.DataDir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	}))
	return files
}

// refused requires that a call failed because of a damaged journal, or succeeded.
func refused(t *testing.T, want bool, err error) {
	t.Helper()
	if !want {
		require.NoError(t, err)
		return
	}
	require.Equal(t, fault.Storage, fault.From(err).Reason())
	require.ErrorContains(t, err, "is damaged")
}

// flip changes one bit of a journal's file, at a part of its length.
func flip(t *testing.T, dataDir, plane string, at float64) {
	path, b := block(t, dataDir, plane)
	b[int(at*float64(len(b)))] ^= 8
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// TestR10_DamageBesideQuotas: where credentials are required, what a namespace holds is counted from all journals; one
// that is damaged keeps neither the server from starting nor others from creating.
func TestR10_DamageBesideQuotas(t *testing.T) {
	proc.Long(t)
	d := newDamageable(t)
	d.quiet()
	require.NoError(t, d.srv.Kill())
	d.srv.Args = append(d.srv.Args, "--auth", "required", "--bootstrap-token", bootstrap)
	flip(t, d.srv.DataDir, "task", 0.3)
	damaged := d.start()
	require.Len(t, damaged, 1)
	require.Contains(t, damaged[0], "the journal of task/0 is damaged")
	create := func(path, body string) int {
		req := must.Value(http.NewRequestWithContext(d.ctx, http.MethodPost, "http://"+d.srv.HTTP+path,
			strings.NewReader(body)))(t)
		req.Header.Set("Authorization", "Bearer "+bootstrap)
		req.Header.Set("Content-Type", "application/json")
		resp := must.Value(http.DefaultClient.Do(req))(t)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, http.StatusOK, create("/v1/agents", `{"agent_id":"another","preset":"public_named"}`))
	require.Equal(t, http.StatusOK, create("/v1/agents/keeper/work-items", `{"objective":"go on"}`))
	require.Equal(t, http.StatusServiceUnavailable, create("/v1/agents/keeper/tasks:exec",
		`{"command":{"cmd":"true"}}`))
}
