package tests

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/load"
)

// A backup is taken while agents work and restored elsewhere: what was answered
// before it began is there, what followed is there in all planes or in none, and
// the restored server goes on. A restore over an installation, of half a file, or
// with another installation's key changes nothing.
func TestBackup_UnderLoad(t *testing.T) {
	bin, dir := binary(t), t.TempDir()
	data := filepath.Join(dir, "data")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	srv := startServer(t, ctx, data)
	quartet := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, bin, append(args, "--address", srv.GRPC)...).CombinedOutput()
		return string(out), err
	}

	w := newWorkload(t, ctx, srv.GRPC, random(t), func(int) bool { return true })
	stop := w.start()
	<-time.After(300 * time.Millisecond)
	stop()
	w.Finish()

	// From here on nobody keeps books: the backup cuts through it somewhere.
	b := &busy{conn: w.conn}
	aside, rest := context.WithCancel(ctx)
	var working sync.WaitGroup
	for i := range 4 {
		working.Go(func() { b.work(aside, fmt.Sprint("busy-", i)) })
	}
	require.Eventually(t, func() bool { return b.rounds() >= 20 }, time.Minute, time.Millisecond)
	file := filepath.Join(dir, "all.backup")
	out, err := quartet("backup", file)
	require.NoError(t, err, out)
	before := b.rounds()
	require.Eventually(t, func() bool { return b.rounds() >= before+20 }, time.Minute, time.Millisecond)
	rest()
	working.Wait()
	require.NoError(t, srv.Kill())

	out, err = quartet("restore", file, "--data-dir", data)
	require.Error(t, err)
	require.Contains(t, out, "contains an installation already")
	require.NoError(t, os.Rename(data, filepath.Join(dir, "old")))
	whole := must.Value(os.ReadFile(file))(t)
	half := filepath.Join(dir, "half.backup")
	require.NoError(t, os.WriteFile(half, whole[:len(whole)/2], 0o600))
	out, err = quartet("restore", half, "--data-dir", data, "--key-file", filepath.Join(dir, "old", "key"))
	require.Error(t, err)
	require.Contains(t, out, "cut short")
	require.NoDirExists(t, data)
	require.NoError(t, os.Mkdir(data, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, "key"), []byte(strings.Repeat("ab", 32)), 0o600))
	out, err = quartet("restore", file, "--data-dir", data)
	require.Error(t, err)
	require.Contains(t, out, "needs another key of the installation")
	require.NoDirExists(t, filepath.Join(data, "nats"))

	key := must.Value(os.ReadFile(filepath.Join(dir, "old", "key")))(t)
	require.NoError(t, os.WriteFile(filepath.Join(data, "key"), key, 0o600))
	// What a restore that was killed left behind does not matter.
	require.NoError(t, os.MkdirAll(filepath.Join(data, "nats.restoring", "jetstream"), 0o700))
	out, err = quartet("restore", file, "--data-dir", data)
	require.NoError(t, err, out)
	require.NoError(t, srv.Start(ctx))

	require.NoError(t, w.Audit(ctx))
	kept := b.verify(t, ctx, srv.HTTP)
	t.Logf("of %d waits made while the backup was made, %d are in it", b.rounds(), kept)
	require.GreaterOrEqual(t, kept, 20)
}

// busy works over three planes: an item, a wait of it, and its trigger.
type busy struct {
	conn *grpc.ClientConn

	mu   sync.Mutex
	made []made
}

type made struct{ agent, item, wait, url string }

func (b *busy) rounds() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.made)
}

func (b *busy) work(ctx context.Context, agent string) {
	agents, items, waits := agentv1.NewAgentServiceClient(b.conn), workv1.NewWorkServiceClient(b.conn),
		waitingv1.NewWaitingServiceClient(b.conn)
	if _, err := agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
		AgentId: agent, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
	}); err != nil {
		return
	}
	for ctx.Err() == nil {
		item, err := items.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
			AgentId: agent, Objective: "is made while a backup is",
		})
		if err != nil {
			return
		}
		m := made{agent: agent, item: item.GetWorkItem().GetWorkItemId()}
		trigger, err := waits.CreateExternalTrigger(ctx, &waitingv1.CreateExternalTriggerRequest{
			AgentId: agent, Description: "CI",
		})
		if err != nil {
			return
		}
		m.url = trigger.GetUrl()
		wait, err := waits.WaitFor(ctx, &waitingv1.WaitForRequest{
			AgentId: agent, WorkItemId: m.item, Reason: "CI runs", Wake: waitingv1.Wake_WAKE_EXTERNAL,
			Resource: trigger.GetTrigger().GetTriggerId(),
		})
		if err != nil {
			return
		}
		m.wait = wait.GetWait().GetWaitId()
		b.mu.Lock()
		b.made = append(b.made, m)
		b.mu.Unlock()
	}
}

// verify finds each round in all planes or in none, and wakes what is there by
// the address that was given out before the backup.
func (b *busy) verify(t *testing.T, ctx context.Context, base string) (kept int) {
	items, waits := workv1.NewWorkServiceClient(b.conn), waitingv1.NewWaitingServiceClient(b.conn)
	woken := map[string]bool{}
	for _, m := range b.made {
		w, err := load.Again(ctx, func(ctx context.Context) (*waitingv1.GetWaitResponse, error) {
			return waits.GetWait(ctx, &waitingv1.GetWaitRequest{AgentId: m.agent, WaitId: m.wait})
		})
		if err != nil && fault.From(err).Code() == codes.NotFound {
			continue
		}
		require.NoError(t, err)
		require.Equal(t, waitingv1.WaitStatus_WAIT_STATUS_ACTIVE, w.GetWait().GetStatus())
		kept++
		attached := func(triggers int64) func() bool {
			return func() bool {
				got, err := items.GetWorkItem(ctx, &workv1.GetWorkItemRequest{AgentId: m.agent, WorkItemId: m.item})
				if err != nil || len(got.GetWorkItem().GetWaits()) != 1 {
					return false
				}
				a := got.GetWorkItem().GetWaits()[0]
				return a.GetWaitId() == m.wait && a.GetTriggerCount() >= triggers
			}
		}
		require.Eventually(t, attached(0), time.Minute, time.Millisecond, "wait %s of item %s", m.wait, m.item)
		if woken[m.agent] { // one of each agent is enough
			continue
		}
		woken[m.agent] = true
		_, path, _ := strings.Cut(m.url, "/v1/")
		req := must.Value(http.NewRequestWithContext(ctx, http.MethodPost, "http://"+base+"/v1/"+path,
			strings.NewReader("{}")))(t)
		resp := must.Value(http.DefaultClient.Do(req))(t)
		require.NoError(t, resp.Body.Close())
		require.Less(t, resp.StatusCode, 300)
		require.Eventually(t, attached(1), time.Minute, time.Millisecond)
	}
	return kept
}
