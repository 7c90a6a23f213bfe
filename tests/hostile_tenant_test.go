package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/tests/proc"
)

var hostile = flag.Duration("hostile", 0, "let a hostile tenant attack a server for so long, on a quiet machine, and assert the latency of another one; else for seconds")

// hostileVariable makes the test binary a hostile tenant, as the JSON of a hostileTenant says.
const hostileVariable = "QUARTET_TEST_HOSTILE"

// hostileTenant is what the attacker has: addresses, a key of each role but admin, and a trigger.
type hostileTenant struct {
	GRPC, HTTP, Trigger string
	Keys                map[string]string // by role
}

// limitMiB is the memory of the server that is attacked.
const limitMiB = 2048

// hostileUntilKilled does everything that costs a server much and that a tenant's keys allow, from an address of
// its own, as fast as it is answered.
func hostileUntilKilled(spec string) {
	var h hostileTenant
	if err := json.Unmarshal([]byte(spec), &h); err != nil {
		panic(err)
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	web := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 256}}
	post := func(key, path, body string) {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://"+h.HTTP+path, strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := web.Do(req)
		if err != nil {
			<-time.After(10 * time.Millisecond) // the server has closed the connection
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	get := func(key, path string) {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+h.HTTP+path, nil)
		if err != nil {
			panic(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		if resp, err := web.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
	large := strings.Repeat("x", 250<<10)
	op, worker := h.Keys["operator"], h.Keys["worker"]
	each := func(n int, do func(i int)) {
		for k := range n {
			go func() {
				for i := k; ; i += n {
					do(i)
				}
			}()
		}
	}
	each(8, func(int) { post("", h.Trigger, large) })
	each(4, func(i int) { post("", "/v1/triggers/qtr_guess"+strconv.Itoa(i), "") })
	each(4, func(i int) { post("guess"+strconv.Itoa(i), "/v1/agents", "{}") })
	each(4, func(int) { post(op, "/v1/agents/mallory/messages", `{"kind":"operator_prompt","text":"`+large+`"}`) })
	each(4, func(int) {
		post(op, "/v1/agents/mallory/work-items", `{"objective":"more","summary":"`+large[:15<<10]+`"}`)
	})
	each(2, func(i int) { post(op, "/v1/agents", `{"agentId":"m`+strconv.Itoa(i)+`","preset":"public_named"}`) })
	each(4, func(int) { get(op, "/v1/agents/mallory/work-items?page_size=500") })
	each(2, func(int) { get(op, "/v1/agents/mallory/home/files:grep?pattern=a.*b.*c") })
	each(2, func(int) { get(h.Keys["runner"], "/v1/agents/mallory/context") })
	conn, err := client.Connect(h.GRPC, client.WithToken(op))
	if err != nil {
		panic(err)
	}
	items := workv1.NewWorkServiceClient(conn)
	each(32, func(int) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, _ = items.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{AgentId: "mallory", Objective: "more"})
	})
	// Streams from the beginning, of which nothing is read.
	each(600, func(int) {
		stream, err := eventv1.NewEventServiceClient(conn).WatchEvents(context.Background(), &eventv1.WatchEventsRequest{FromStart: true})
		if err == nil {
			_, err = stream.Recv()
		}
		if err == nil {
			<-stream.Context().Done()
		}
		<-time.After(100 * time.Millisecond)
	})
	each(200, func(int) {
		if w := dialWire("127.0.0.2", h.HTTP); w != nil {
			w.frames = append(w.frames, "GET /v1/events?from_start=true HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "+worker+"\r\n\r\n"...)
			w.send(time.Second)
			<-time.After(10 * time.Second)
			_ = w.Close()
		}
	})
	select {}
}

// TestG11_AHostileTenant: a tenant with every role but admin does all that costs much, all at once. The server
// stays within its memory, another tenant is refused nothing, and what is stored is bounded.
func TestG11_AHostileTenant(t *testing.T) {
	length := 5 * time.Second
	if *hostile > 0 {
		length = *hostile
	}
	dir := t.TempDir()
	q, err := proc.NewQuartet(binary(t), dir, "", "--auth", "required", "--bootstrap-token", bootstrap,
		"--max-memory-mib", strconv.Itoa(limitMiB), "--quota-mib", "1024", "--embedded-worker", "off")
	require.NoError(t, err)
	if *hostile > 0 { // the server has one processor and the load the other one, also while the server is quiet
		q.Binary, q.Args = "taskset", append([]string{"-c", "0", q.Binary}, q.Args...)
		out, err := exec.CommandContext(t.Context(), "taskset", "-a", "-p", "-c", "1", strconv.Itoa(os.Getpid())).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, q.Start(ctx))
	t.Cleanup(func() { require.NoError(t, q.Kill()) })

	admin, err := client.Connect(q.GRPC, client.WithToken(bootstrap))
	require.NoError(t, err)
	defer admin.Close()
	key := func(namespace string, role identityv1.Role) string {
		resp, err := identityv1.NewIdentityServiceClient(admin).CreateKey(soon(t), &identityv1.CreateKeyRequest{Name: strings.ToLower(role.String()), Namespace: namespace, Role: role})
		require.NoError(t, err)
		return resp.GetSecret()
	}
	h := hostileTenant{GRPC: q.GRPC, HTTP: q.HTTP, Keys: map[string]string{}}
	for name, role := range map[string]identityv1.Role{"operator": identityv1.Role_ROLE_OPERATOR, "runner": identityv1.Role_ROLE_RUNNER, "worker": identityv1.Role_ROLE_WORKER, "integration": identityv1.Role_ROLE_INTEGRATION} {
		h.Keys[name] = key("mallory", role)
	}
	good := key("acme", identityv1.Role_ROLE_OPERATOR)
	rest := func(token, path, body string) map[string]any {
		req, err := http.NewRequestWithContext(soon(t), http.MethodPost, "http://"+q.HTTP+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", raw)
		var out map[string]any
		require.NoError(t, json.Unmarshal(raw, &out))
		return out
	}
	rest(h.Keys["operator"], "/v1/agents", `{"agentId":"mallory","preset":"public_named"}`)
	rest(good, "/v1/agents", `{"agentId":"keeper","preset":"public_named"}`)
	trigger := rest(h.Keys["operator"], "/v1/agents/mallory/triggers", `{"deliveryMode":"contentful"}`)
	h.Trigger = "/v1/triggers/" + trigger["token"].(string) //nolint:forcetypeassert // it is in each response

	mine, err := client.Connect(q.GRPC, client.WithToken(good))
	require.NoError(t, err)
	defer mine.Close()
	items := workv1.NewWorkServiceClient(mine)
	made, err := items.CreateWorkItem(soon(t), &workv1.CreateWorkItemRequest{AgentId: "keeper", Objective: "to go on"})
	require.NoError(t, err)
	n := 0
	work := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		n++
		objective := "to go on " + strconv.Itoa(n)
		_, err := items.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{AgentId: "keeper", WorkItemId: made.GetWorkItem().GetWorkItemId(), Objective: &objective}, grpc.WaitForReady(true))
		return err
	}
	quietMemory, quiet := latencies(t, q, min(length, 10*time.Second), work)

	spec, err := json.Marshal(h)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	attacker := exec.CommandContext(t.Context(), exe)
	attacker.Env = append(os.Environ(), hostileVariable+"="+string(spec))
	var said bytes.Buffer
	attacker.Stderr = &said
	require.NoError(t, attacker.Start())
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = attacker.Process.Kill()
			_ = attacker.Wait() // it was killed
		}
	}
	defer end()
	attackedMemory, attacked := latencies(t, q, length, work)
	end()
	require.Empty(t, said.String(), "the attacker failed")
	t.Logf("memory %d MiB quiet, %d MiB at most attacked, of %d; on disk %d MiB", quietMemory>>20, attackedMemory>>20, limitMiB, onDisk(t, dir)>>20)
	t.Logf("updates of another tenant: quiet %s, attacked %s", quiet, attacked)
	require.NoError(t, work())
	require.LessOrEqual(t, attackedMemory, limitMiB<<20, "memory")
	// A MiB of the quota is stored once in a journal, with the broker's own data, and once more for EVENTS.
	require.LessOrEqual(t, onDisk(t, dir), 3*1024<<20, "stored")
	if *hostile > 0 {
		require.LessOrEqual(t, attacked.p99, 3*quiet.p99, "p99")
	}
}

// spread are latencies in order.
type spread struct {
	n                  int
	p50, p90, p95, p99 time.Duration
}

// String returns the figures for people.
func (s spread) String() string {
	return fmt.Sprintf("n=%d p50=%s p90=%s p95=%s p99=%s", s.n, s.p50, s.p90, s.p95, s.p99)
}

// latencies calls try a hundred times a second for some time, which must never fail, and returns the most memory
// that the process had and how long the calls took.
func latencies(t *testing.T, q *proc.Quartet, length time.Duration, try func() error) (most int, s spread) {
	t.Helper()
	every := time.NewTicker(10 * time.Millisecond)
	defer every.Stop()
	var took []time.Duration
	for end := time.Now().Add(length); time.Now().Before(end); {
		<-every.C
		began := time.Now()
		require.NoError(t, try())
		took = append(took, time.Since(began))
		memory, _ := cost(t, q.PID())
		most = max(most, memory)
	}
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[len(took)*percent/100].Round(time.Microsecond) }
	return most, spread{n: len(took), p50: at(50), p90: at(90), p95: at(95), p99: at(99)}
}

// onDisk returns how many bytes the files below a directory have.
func onDisk(t *testing.T, dir string) int {
	t.Helper()
	var bytes int64
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		if st, err := d.Info(); err == nil {
			bytes += st.Size()
		}
		return nil
	}))
	return int(bytes)
}
