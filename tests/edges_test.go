package tests

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/tests/attack"
	"quartet/tests/proc"
)

// strict starts a process that demands credentials.
func strict(t *testing.T) *proc.Quartet {
	t.Helper()
	q, err := proc.NewQuartet(binary(t), t.TempDir(), "", "--auth", "required", "--bootstrap-token", bootstrap)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, q.Start(ctx))
	t.Cleanup(func() { require.NoError(t, q.Kill()) })
	return q
}

// memory returns the resident memory of a server in bytes.
func memory(t *testing.T, q *proc.Quartet) int {
	t.Helper()
	bytes, _, err := attack.Cost(q.PID())
	require.NoError(t, err)
	return bytes
}

// fresh calls WhoAmI with the bootstrap token over new connections of both kinds.
func fresh(q *proc.Quartet) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := client.Connect(q.GRPC, client.WithToken(bootstrap))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := identityv1.NewIdentityServiceClient(conn).WhoAmI(ctx, &identityv1.WhoAmIRequest{},
		grpc.WaitForReady(true)); err != nil {
		return fmt.Errorf("gRPC: %w", err)
	}
	rest := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+q.HTTP+"/v1/agents", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+bootstrap)
	resp, err := rest.Do(req)
	if err != nil {
		return fmt.Errorf("REST: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("REST: %s", resp.Status)
	}
	return nil
}

var strangers = flag.Bool("attack", false, "attack a server without a credential by 1 000 connections for a minute, "+
	"on a quiet machine; else by 100 for seconds")

// TestG8_AnAttackerWithoutACredentialIsBounded: connections and ten new ones a second, of every
// kind that once cost much, cost little memory, and no valid credential is refused meanwhile. The attacker is a
// process of its own: as goroutines of this one, a thousand of them would make the valid caller wait its turn for
// longer than the server does.
func TestG8_AnAttackerWithoutACredentialIsBounded(t *testing.T) {
	connections, length := 100, 3*time.Second
	if *strangers {
		connections, length = 1000, 30*time.Second
	}
	q := strict(t)
	require.NoError(t, fresh(q))
	try := func(context.Context) error { return fresh(q) }
	watch := func(length time.Duration) attack.Usage {
		used, _, err := attack.Measure(t.Context(), q.PID(), length, 100*time.Millisecond, try)
		require.NoError(t, err)
		return used
	}
	quiet := watch(length)
	attacker := must.Value(attack.Begin(t.Context(),
		attack.Spec{Stranger: &attack.Stranger{GRPC: q.GRPC, HTTP: q.HTTP, Connections: connections}}))(t)
	defer func() { _ = attacker.End() }()
	opening := watch(length / 2)
	attacked := watch(length)
	require.NoError(t, attacker.End())
	most := max(opening.Memory, attacked.Memory)
	t.Logf("opening took %s of the processor", opening.CPU)
	t.Logf("memory %d MiB quiet, %d MiB at most attacked; processor %s quiet, %s attacked, of %s", quiet.Memory>>20,
		most>>20, quiet.CPU, attacked.CPU, length)
	require.LessOrEqual(t, most-quiet.Memory, 64<<20, "memory")
	if *strangers {
		require.LessOrEqual(t, attacked.CPU-quiet.CPU, length/50, "2 % of a processor")
	}
	require.NoError(t, fresh(q))
}

// TestG8_NoKindOfConnectionCostsMuch: one kind of connection alone costs no more memory than all. With -attack it
// prints what each costs.
func TestG8_NoKindOfConnectionCostsMuch(t *testing.T) {
	connections, length := 20, time.Second
	if *strangers {
		connections, length = 500, 10*time.Second
	}
	q := strict(t)
	require.NoError(t, fresh(q))
	try := func(context.Context) error { return fresh(q) }
	quiet, _, err := attack.Measure(t.Context(), q.PID(), length, 100*time.Millisecond, try)
	require.NoError(t, err)
	for i, kind := range attack.Kinds {
		attacker,
			err := attack.Begin(t.Context(),
			attack.Spec{Stranger: &attack.Stranger{GRPC: q.GRPC, HTTP: q.HTTP, Connections: connections, Only: i + 1}})
		require.NoError(t, err)
		used, _, err := attack.Measure(t.Context(), q.PID(), length, 100*time.Millisecond, try)
		ended := attacker.End()
		require.NoError(t, err, kind)
		require.NoError(t, ended, kind)
		t.Logf("%-38s memory %d MiB, processor %s of %s; quiet: %d MiB, %s", kind, used.Memory>>20, used.CPU, length,
			quiet.Memory>>20, quiet.CPU)
		require.LessOrEqual(t, used.Memory-quiet.Memory, 64<<20, kind)
	}
}

// TestG8_NestedRequestsOfAKnownCaller: brackets without end cost little wherever JSON is read, over MCP and
// in the arguments of tools too.
func TestG8_NestedRequestsOfAKnownCaller(t *testing.T) {
	q := strict(t)
	const size = 4<<20 - 200
	quiet := memory(t, q)
	call := func(path, body string) int {
		req, err := http.NewRequestWithContext(soon(t), http.MethodPost, "http://"+q.HTTP+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+bootstrap)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		resp := must.Value(http.DefaultClient.Do(req))(t)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, http.StatusOK, call("/mcp/keeper?create=true", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	for _, nested := range []string{
		strings.Repeat("[", size), strings.Repeat(`{"a":`, size/5),
		strings.Repeat("[", size/2) + strings.Repeat("]", size/2),
	} {
		for _, c := range []struct{ path, before, after string }{
			{"/v1/agents", "", ""},
			{"/mcp/keeper", "", ""},
			{
				"/mcp/keeper",
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"PickWorkItem","arguments":{"a":`,
				`}}}`,
			},
		} {
			status := call(c.path, c.before+nested+c.after)
			now := memory(t, q)
			t.Logf("%s: %d, %d MiB", c.path, status, now>>20)
			// Several requests' garbage may not be collected yet; a body that was decoded took 1 GB.
			require.LessOrEqual(t, now-quiet, 384<<20, "%s %.60s", c.path, c.before+nested)
		}
	}
}

var hostile = flag.Duration("hostile", 0, "let a hostile tenant attack a server for so long, on a quiet machine, and "+
	"assert the latency of another one; else for seconds")

// limitMiB is the memory of the server that is attacked.
const limitMiB = 2048

// TestG11_AHostileTenant: a tenant with every role but admin does all that costs much, all at once. The server
// stays within its memory, another tenant is refused nothing, and what is stored is bounded.
func TestG11_AHostileTenant(t *testing.T) {
	length := 5 * time.Second
	if *hostile > 0 {
		length = *hostile
	}
	dir := t.TempDir()
	q := must.Value(proc.NewQuartet(binary(t), dir, "", "--auth", "required", "--bootstrap-token", bootstrap,
		"--max-memory-mib", strconv.Itoa(limitMiB), "--quota-mib", "1024", "--embedded-worker", "off"))(t)
	if *hostile > 0 { // the server has one processor and the load the other one, also while the server is quiet
		q.Binary, q.Args = "taskset", append([]string{"-c", "0", q.Binary}, q.Args...)
		require.NoError(t, attack.Pin(t.Context(), os.Getpid(), "1"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, q.Start(ctx))
	t.Cleanup(func() { require.NoError(t, q.Kill()) })

	tenant := must.Value(attack.NewTenant(soon(t), q.GRPC, q.HTTP, bootstrap))(t)
	neighbour := must.Value(attack.NewNeighbour(soon(t), q.GRPC, bootstrap))(t)
	defer neighbour.Close()
	const period = 10 * time.Millisecond
	before, quiet, err := attack.Measure(t.Context(), q.PID(), min(length, 10*time.Second), period, neighbour.Update)
	require.NoError(t, err)

	attacker := must.Value(attack.Begin(t.Context(), attack.Spec{Tenant: tenant}))(t)
	defer func() { _ = attacker.End() }() // reported below, unless the test has failed before
	reached := make(chan bool, 1)
	go func() { // at once: later its first tasks are far down the list
		reached <- tenant.Await(ctx)
	}()
	during, attacked, err := attack.Measure(t.Context(), q.PID(), length, period, neighbour.Update)
	require.NoError(t, err)
	require.True(t, <-reached, "the attack is not what it should be")
	require.NoError(t, attacker.End())
	stored := must.Value(attack.OnDisk(dir))(t)
	t.Logf("memory %d MiB quiet, %d MiB at most attacked, of %d; on disk %d MiB", before.Memory>>20, during.Memory>>20,
		limitMiB, stored>>20)
	t.Logf("updates of another tenant: quiet %s, attacked %s", quiet, attacked)
	t.Logf("processor time of the server during an update: quiet %s, attacked %s", before.Calls, during.Calls)
	require.NoError(t, neighbour.Update(t.Context()))
	require.LessOrEqual(t, during.Memory, limitMiB<<20, "memory")
	// A MiB of the quota is stored once in a journal, with the broker's own data, and once more for EVENTS.
	require.LessOrEqual(t, stored, int64(3*1024<<20), "stored")
	if *hostile > 0 {
		require.LessOrEqual(t, attacked.P99, 3*quiet.P99, "p99")
	}
}
