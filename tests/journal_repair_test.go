package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/proc"
)

// TestR10_ALossIsAccepted: of frames without any copy it is said what they were about; the partition goes on without
// them, above every number that others recorded, and others go on with it.
func TestR10_ALossIsAccepted(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	d := newDamageable(t)
	cursor := d.lastCursor()
	for i := range 20 {
		d.item(fmt.Sprintf("PAID INVOICE %d", i))
	}
	d.completed("which waiting has read about")
	later := d.lastCursor()
	d.quiet()
	require.NoError(t, d.srv.Kill())
	path, b := block(t, d.srv.DataDir, "work")
	require.NoError(t, os.Truncate(path, int64(len(b)*6/10)))
	require.Len(t, d.start(), 1)
	require.NoError(t, d.srv.Kill())

	r, code := d.repair()
	require.Equal(t, 1, code)
	lost := r.of("work").Loss
	require.NotNil(t, lost)
	require.Contains(t, lost.Types, "work_item_created", "EVENTS tells")
	require.Equal(t, []string{"keeper"}, lost.Agents)
	require.NotEmpty(t, lost.Items)
	out, code := d.quartet("repair", "--data-dir", d.srv.DataDir, "--accept-loss", "agent/0")
	require.NotZero(t, code)
	require.Contains(t, out, "is not damaged")

	r, code = d.repair("--accept-loss", "work/0", "--apply")
	require.Zero(t, code)
	j := r.of("work")
	require.Equal(t, "accepted", j.Status)
	require.Greater(t, j.BeginsWalSeq, lost.Last)
	require.Contains(t, string(must.Value(os.ReadFile(j.Loss.File))(t)), "PAID INVOICE 19")
	require.DirExists(t, filepath.Join(r.Replaced, "quartet-journal-work-0-0"))
	out, code = d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Zero(t, code, out)

	for range 2 { // positions in lost frames are still there after another restart
		require.Empty(t, d.start())
		list, err := d.work.ListWorkItems(d.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", PageSize: 100})
		require.NoError(t, err)
		require.NotEmpty(t, list.GetWorkItems())
		require.Less(t, len(list.GetWorkItems()), 42)
		item := d.completed("after the loss") // waiting had read frames that are lost, and reads on
		// A cursor from before goes on, one in the lost frames is refused.
		require.Equal(t, http.StatusOK, d.watch(cursor).status)
		require.Contains(t, d.watch(cursor).text, item)
		refused := d.watch(later)
		require.Equal(t, http.StatusBadRequest, refused.status, refused.text)
		require.Contains(t, refused.text, "CURSOR_OUT_OF_RANGE")
		d.quiet()
		require.NoError(t, d.srv.Kill())
	}

	// A backup of it can be restored, with the numbers that the journals have.
	require.Empty(t, d.start())
	backup := filepath.Join(t.TempDir(), "quartet.backup")
	out, code = d.quartet("backup", backup, "--address", d.srv.GRPC)
	require.Zero(t, code, out)
	items := d.items()
	require.NoError(t, d.srv.Kill())
	d.restored(backup)
	out, code = d.quartet("verify", "--data-dir", d.srv.DataDir)
	require.Zero(t, code, out)
	require.Empty(t, d.start())
	require.Equal(t, items, d.items())
	d.completed("after the restore")
	require.NoError(t, d.srv.Kill())
}

// items returns the ids of the keeper's items.
func (d *damageable) items() (ids []string) {
	d.t.Helper()
	list := must.Value(d.work.ListWorkItems(d.ctx, &workv1.ListWorkItemsRequest{AgentId: "keeper", PageSize: 100}))(d.t)
	for _, item := range list.GetWorkItems() {
		ids = append(ids, item.GetWorkItemId())
	}
	return ids
}

// TestR10_ABackupAndLaterFrames: a part of a journal that no bit explains is taken from a backup, and the frames that
// were written after it are kept.
func TestR10_ABackupAndLaterFrames(t *testing.T) {
	proc.Long(t)
	d := newDamageable(t)
	backup := filepath.Join(t.TempDir(), "quartet.backup")
	out, code := d.quartet("backup", backup, "--address", d.srv.GRPC)
	require.Zero(t, code, out)
	for i := range 20 {
		d.item(fmt.Sprintf("PAID INVOICE %d", i))
	}
	d.quiet()
	require.NoError(t, d.srv.Kill())
	path, b := block(t, d.srv.DataDir, "work")
	copy(b[len(b)/4:], make([]byte, 3000))
	require.NoError(t, os.WriteFile(path, b, 0o600))
	require.Len(t, d.start(), 1)
	require.NoError(t, d.srv.Kill())

	r, code := d.repair()
	require.Equal(t, 1, code)
	require.Equal(t, "lost", r.of("work").Status)
	require.Empty(t, r.Replaced)
	r, code = d.repair("--from-backup", backup)
	require.Equal(t, 1, code, "nothing was changed yet")
	require.Equal(t, "repairable", r.of("work").Status)
	r, code = d.repair("--from-backup", backup, "--apply")
	require.Zero(t, code)
	require.NotZero(t, r.of("work").Copies["the backup"])
	d.everythingIsThere(40)

	forged := filepath.Join(t.TempDir(), "forged.backup")
	raw := must.Value(os.ReadFile(backup))(t)
	raw[len(raw)/2] ^= 1
	require.NoError(t, os.WriteFile(forged, raw, 0o600))
	flip(t, d.srv.DataDir, "work", 0.5)
	out, code = d.quartet("repair", "--data-dir", d.srv.DataDir, "--from-backup", forged)
	require.NotZero(t, code)
	require.Contains(t, out, "nothing was changed")
}

// TestR10_OnePartitionOfAPlaneIsDamaged: where a plane is split, a changed bit in a frame of one partition leaves those
// behind it to the others, which are served; the number of a lost frame is not used again, and the repair finds it.
func TestR10_OnePartitionOfAPlaneIsDamaged(t *testing.T) {
	proc.Long(t)
	d := newDamageable(t, "--partitions", "work=3")
	create := func(agent string) error {
		_, err := d.work.CreateWorkItem(d.ctx, &workv1.CreateWorkItemRequest{AgentId: agent, Objective: "of " + agent})
		return err
	}
	var agents []string
	for i := range 30 {
		agent := fmt.Sprintf("agent-%d", i)
		agents = append(agents, agent)
		must.Value(d.agents.SpawnAgent(d.ctx, &agentv1.SpawnAgentRequest{
			AgentId: agent, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		}))(t)
		require.NoError(t, create(agent))
	}
	d.quiet()
	require.NoError(t, d.srv.Kill())
	flip(t, d.srv.DataDir, "work", 0.7)
	damaged := d.start()
	require.Len(t, damaged, 1, "the others are in order")
	served := 0
	for _, agent := range agents {
		err := create(agent)
		if err == nil {
			served++
		} else {
			refused(t, true, err)
		}
	}
	require.Greater(t, served, 5)
	require.Less(t, served, 30)
	require.NoError(t, d.srv.Kill())

	r, code := d.repair("--apply")
	require.Zero(t, code)
	statuses := map[string]int{}
	for _, j := range r.Journals {
		if strings.HasPrefix(j.Partition, "work/") {
			statuses[j.Status]++
		}
	}
	require.Equal(t, map[string]int{"intact": 2, "repairable": 1}, statuses)
	require.Empty(t, d.start())
	for _, agent := range agents {
		require.NoError(t, create(agent))
		list := must.Value(d.work.ListWorkItems(d.ctx, &workv1.ListWorkItemsRequest{AgentId: agent, PageSize: 100}))(t)
		served -= len(list.GetWorkItems()) - 2 // that of before, and the one just made
	}
	require.Zero(t, served, "what was made meanwhile is there as well")
}

// TestR10_ARepairThatIsKilled: whenever a repair is killed, the journals are as before or repaired, and it can be
// repeated.
func TestR10_ARepairThatIsKilled(t *testing.T) {
	proc.Long(t)
	d := newDamageable(t)
	for i := range 20 {
		d.item(fmt.Sprintf("PAID INVOICE %d", i))
	}
	d.quiet()
	require.NoError(t, d.srv.Kill())
	flip(t, d.srv.DataDir, "work", 0.5)
	flip(t, d.srv.DataDir, "board", 0.5)
	killed := 0
	for after := 20 * time.Millisecond; ; after += after/4 + 5*time.Millisecond {
		cmd := exec.CommandContext(d.ctx, d.srv.Binary, "repair", "--data-dir", d.srv.DataDir, "--apply")
		require.NoError(t, cmd.Start())
		kill := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if kill.Stop(); err == nil {
			break
		}
		killed++
		r, _ := d.repair()
		for _, j := range r.Journals {
			require.Contains(t, []string{"intact", "repairable"}, j.Status, after)
		}
	}
	require.Positive(t, killed)
	d.everythingIsThere(40)
}

// TestR10_EVENTSIsCopiedAgain: damage to EVENTS is named, and after a repair it has everything again.
func TestR10_EVENTSIsCopiedAgain(t *testing.T) {
	proc.Long(t)
	d := newDamageable(t)
	d.quiet()
	require.NoError(t, d.srv.Interrupt(d.ctx))
	events := func() string {
		files, err := filepath.Glob(filepath.Join(d.srv.DataDir, "nats", "jetstream", "$G", "streams", "EVENTS", "msgs",
			"*.blk"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		return files[0]
	}
	path := events()
	b := must.Value(os.ReadFile(path))(t)
	before := strings.Count(string(b), `"type":"quartet.work.work_item_created"`)
	require.Equal(t, 40, before, "20 items, and each as a change of its readiness")
	b[len(b)/3] ^= 8
	require.NoError(t, os.WriteFile(path, b, 0o600))

	out, code := d.quartet("repair", "--data-dir", d.srv.DataDir)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "damaged    EVENTS")
	_, code = d.repair("--apply")
	require.Zero(t, code)
	require.Empty(t, d.start())
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(events())
		return err == nil && strings.Count(string(b), `"type":"quartet.work.work_item_created"`) == before
	}, time.Minute, 100*time.Millisecond)
}

// completed completes an item with a timer and waits until the timer is cancelled because of that, and returns the
// item's id.
func (d *damageable) completed(title string) string {
	d.t.Helper()
	item := d.item(title)
	timer := must.Value(d.waiting.CreateTimer(d.ctx, &waitingv1.CreateTimerRequest{
		AgentId: "keeper", WorkItemId: item, After: durationpb.New(24 * time.Hour),
	}))(d.t)
	_, err := d.work.CompleteWorkItem(d.ctx, &workv1.CompleteWorkItemRequest{AgentId: "keeper", WorkItemId: item})
	require.NoError(d.t, err)
	require.Eventually(d.t, func() bool {
		got, err := d.waiting.GetTimer(d.ctx, &waitingv1.GetTimerRequest{AgentId: "keeper", TimerId: timer.GetTimer().
			GetTimerId()})
		return err == nil && got.GetTimer().GetStatus() == waitingv1.TimerStatus_TIMER_STATUS_CANCELLED
	}, time.Minute, 50*time.Millisecond)
	return item
}

// watched is the answer to a request for events.
type watched struct {
	status int
	text   string
}

// watch returns all events behind a cursor; "" is the beginning.
func (d *damageable) watch(cursor string) watched {
	d.t.Helper()
	query := "from_start=true"
	if cursor != "" {
		query = "cursor=" + cursor
	}
	ctx, cancel := context.WithTimeout(d.ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.srv.HTTP+"/v1/events?stop_at_end=true&"+
		query, nil)
	require.NoError(d.t, err)
	req.Header.Set("Authorization", "Bearer "+d.key)
	resp := must.Value(http.DefaultClient.Do(req))(d.t)
	defer resp.Body.Close()
	var text strings.Builder
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
	}
	require.NoError(d.t, lines.Err())
	return watched{resp.StatusCode, text.String()}
}

// lastCursor returns the cursor of the last event that there is.
func (d *damageable) lastCursor() (cursor string) {
	d.t.Helper()
	all := d.watch("")
	require.Equal(d.t, http.StatusOK, all.status, all.text)
	for line := range strings.Lines(all.text) {
		var r struct {
			Result struct{ Event struct{ Cursor string } }
		}
		require.NoError(d.t, json.Unmarshal([]byte(line), &r), line)
		if r.Result.Event.Cursor != "" {
			cursor = r.Result.Event.Cursor
		}
	}
	require.NotEmpty(d.t, cursor, all.text)
	return cursor
}

// restored replaces the data directory of a server that was killed by what a backup has. The installation's key stays.
func (d *damageable) restored(backup string) {
	d.t.Helper()
	key := must.Value(os.ReadFile(filepath.Join(d.srv.DataDir, "key")))(d.t)
	require.NoError(d.t, os.RemoveAll(d.srv.DataDir))
	require.NoError(d.t, os.MkdirAll(d.srv.DataDir, 0o700))
	require.NoError(d.t, os.WriteFile(filepath.Join(d.srv.DataDir, "key"), key, 0o600))
	out, code := d.quartet("restore", backup, "--data-dir", d.srv.DataDir)
	require.Zero(d.t, code, out)
}
