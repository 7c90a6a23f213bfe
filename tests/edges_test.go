package tests

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/client"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/tests/proc"
)

const (
	getAgent    = "/quartet.agent.v1.AgentService/GetAgent"
	healthCheck = "/grpc.health.v1.Health/Check"
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

// cost returns the resident memory of a process in bytes, and its processor time.
func cost(t *testing.T, pid int) (memory int, cpu time.Duration) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0, 0 // the bounds are asserted where they can be read
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
	require.NoError(t, err)
	raw, err = os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+2:]))
	user, err := strconv.Atoi(fields[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	return pages * os.Getpagesize(), time.Duration(user+system) * (time.Second / 100)
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
	if _, err := identityv1.NewIdentityServiceClient(conn).WhoAmI(ctx, &identityv1.WhoAmIRequest{}, grpc.WaitForReady(true)); err != nil {
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

// attacks are what an attacker without a credential does on one connection, each until the server
// closes it.
func attacks(grpcAddr, httpAddr string, n int) {
	from := "127.0.0.2"
	to := grpcAddr
	if n%2 == 1 {
		to = httpAddr
	}
	w := dialWire(from, to)
	if w == nil {
		return
	}
	defer w.Close()
	go w.drain()
	const term = 20 * time.Second
	post := func(path, token, body string, length int) {
		w.frames = append(w.frames, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, token, length, body)...)
		w.send(term)
	}
	if to == httpAddr {
		switch n / 2 % 6 {
		case 0: // nothing
		case 1:
			post("/v1/agents", "guessed", "abc", 200_000)
		case 2:
			post("/v1/agents", "guessed", strings.Repeat("[", 4<<20), 4<<20)
		case 3:
			post("/v1/triggers/qtr_guessed", "", strings.Repeat("x", 250<<10), 256<<10)
		case 4: // a header without end
			for range 1000 {
				w.frames = append(w.frames, "GET / HTTP/1.1\r\nX: "+strings.Repeat("x", 1000)+"\r\n"...)
			}
			w.send(term)
		case 5: // what costs much and needs no credential
			for range 1000 {
				w.frames = append(w.frames, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"...)
			}
			w.send(term)
		}
	} else {
		w.preface()
		switch n / 2 % 6 {
		case 0: // nothing
		case 1: // streams
			for range 20_000 {
				w.call(getAgent)
			}
			w.send(term)
		case 2: // half a message
			w.part(w.call(getAgent), 4<<20, 2<<20)
			w.send(term)
		case 3: // half a message where no credential is needed
			for range 4 {
				w.part(w.call(healthCheck), 4<<20, 1<<20)
			}
			w.send(term)
		case 4: // guesses
			for i := range 10_000 {
				w.call(getAgent, "authorization", "Bearer qk_guess"+strconv.Itoa(i))
			}
			w.send(term)
		case 5: // frames that are of no call
			for range 10_000 {
				w.frame(frameSettings, 0, 0, nil)
			}
			w.send(term)
		}
	}
	// As long as the server lets it; the test ends it with the process.
	_ = w.SetReadDeadline(time.Time{})
	buf := make([]byte, 1)
	for {
		if _, err := w.Write(buf[:0]); err != nil {
			return
		}
		if _, err := w.Read(buf); err != nil {
			return
		}
	}
}

var attack = flag.Bool("attack", false, "attack a server without a credential by 1 000 connections for a minute, on a quiet machine; else by 100 for seconds")

// attackVariable makes the test binary the attacker of the server at these addresses: gRPC, HTTP and the
// number of connections that it opens at first.
const attackVariable = "QUARTET_TEST_ATTACK"

// attackUntilKilled attacks as attackVariable says: with connections at once, and ten more each second.
func attackUntilKilled(spec string) {
	var grpcAddr, httpAddr string
	var connections int
	if _, err := fmt.Sscan(spec, &grpcAddr, &httpAddr, &connections); err != nil {
		panic(err)
	}
	for n := range connections {
		go attacks(grpcAddr, httpAddr, n)
	}
	n := 0
	for range time.Tick(time.Second / 10) {
		go attacks(grpcAddr, httpAddr, n)
		n++
	}
}

// TestG8_AnAttackerWithoutACredentialIsBounded: connections and ten new ones a second, of every
// kind that once cost much, cost little memory, and no valid credential is refused meanwhile. The attacker is a
// process of its own: as goroutines of this one, a thousand of them would make the valid caller wait its turn for
// longer than the server does.
func TestG8_AnAttackerWithoutACredentialIsBounded(t *testing.T) {
	connections, length := 100, 3*time.Second
	if *attack {
		connections, length = 1000, 30*time.Second
	}
	q := strict(t)
	require.NoError(t, fresh(q))
	quiet, before := watch(t, q, length, func() error { return fresh(q) })

	exe, err := os.Executable()
	require.NoError(t, err)
	attacker := exec.CommandContext(t.Context(), exe)
	attacker.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", attackVariable, q.GRPC, q.HTTP, connections))
	require.NoError(t, attacker.Start())
	defer func() {
		_ = attacker.Process.Kill()
		_ = attacker.Wait() // it was killed
	}()
	first, opening := watch(t, q, length/2, func() error { return fresh(q) })
	attacked, during := watch(t, q, length, func() error { return fresh(q) })
	attacked = max(attacked, first)
	t.Logf("opening took %s of the processor", opening)
	t.Logf("memory %d MiB quiet, %d MiB at most attacked; processor %s quiet, %s attacked, of %s", quiet>>20, attacked>>20, before, during, length)
	require.LessOrEqual(t, attacked-quiet, 64<<20, "memory")
	require.NoError(t, fresh(q))
}

// watch calls try ten times a second for some time, which must never fail, and returns the most
// memory that the process had, and the processor time that it took.
func watch(t *testing.T, q *proc.Quartet, length time.Duration, try func() error) (most int, cpu time.Duration) {
	t.Helper()
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	_, began := cost(t, q.PID())
	for end := time.Now().Add(length); time.Now().Before(end); {
		<-every.C
		require.NoError(t, try())
		memory, now := cost(t, q.PID())
		most, cpu = max(most, memory), now-began
	}
	return most, cpu
}

// TestG8_NestedRequestsOfAKnownCaller: brackets without end cost little wherever JSON is read, over MCP and
// in the arguments of tools too.
func TestG8_NestedRequestsOfAKnownCaller(t *testing.T) {
	q := strict(t)
	const size = 4<<20 - 200
	quiet, _ := cost(t, q.PID())
	call := func(path, body string) int {
		req, err := http.NewRequestWithContext(soon(t), http.MethodPost, "http://"+q.HTTP+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+bootstrap)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, http.StatusOK, call("/mcp/keeper?create=true", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	for _, nested := range []string{strings.Repeat("[", size), strings.Repeat(`{"a":`, size/5), strings.Repeat("[", size/2) + strings.Repeat("]", size/2)} {
		for _, c := range []struct{ path, before, after string }{
			{"/v1/agents", "", ""},
			{"/mcp/keeper", "", ""},
			{"/mcp/keeper", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"PickWorkItem","arguments":{"a":`, `}}}`},
		} {
			status := call(c.path, c.before+nested+c.after)
			memory, _ := cost(t, q.PID())
			t.Logf("%s: %d, %d MiB", c.path, status, memory>>20)
			// Several requests' garbage may not be collected yet; a body that was decoded took 1 GB.
			require.LessOrEqual(t, memory-quiet, 384<<20, "%s %.60s", c.path, c.before+nested)
		}
	}
}
