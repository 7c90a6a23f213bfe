package attack

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/client"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/retry"
)

// Mallory is the name of a hostile tenant's namespace and of its agent.
const Mallory = "mallory"

// Tenant is an attacker with keys of every role but admin, a trigger, and credentials of its agent's runs. It does
// everything that costs a server much and that these allow, as fast as it is answered.
type Tenant struct {
	GRPC, HTTP string
	Trigger    string            // the path to which its deliveries are sent
	Keys       map[string]string // by role
}

const (
	// large is the size of a text that a message or a delivery may have.
	large = 250 << 10
	// pause is how long an attacker waits after a failure, such as a connection that the server has closed.
	pause = 10 * time.Millisecond
)

// each does something n times at once, again and again.
func each(n int, do func(i int)) {
	for k := range n {
		go func() {
			for i := k; ; i += n {
				do(i)
			}
		}()
	}
}

// attack attacks until the process is killed.
func (t *Tenant) attack() {
	w := &web{addr: t.HTTP, client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DialContext: dialer().DialContext, MaxIdleConnsPerHost: 256,
	}}}
	op := t.connect(t.Keys["operator"])
	t.write(w)
	t.read(w)
	t.create(op)
	t.watch(op)
	t.runCommands(op)
	t.takeTurns(w)
}

// Await waits until a worker of the tenant has executed a command, and a runner of it a turn: until the attack has
// reached what takes longest to begin. It returns false if ctx ends first.
func (t *Tenant) Await(ctx context.Context) bool {
	pacer := retry.New(100*time.Millisecond, 100*time.Millisecond)
	for {
		one, cancel := context.WithTimeout(ctx, 10*time.Second)
		reached, err := t.reached(one)
		cancel()
		if err == nil && reached {
			return true
		}
		if pacer.Wait(ctx) != nil {
			return false
		}
	}
}

// reached reports whether what Await waits for is among the newest tasks and turns.
func (t *Tenant) reached(ctx context.Context) (bool, error) {
	op := t.connect(t.Keys["operator"])
	defer func() { _ = op.Close() }()
	tasks, err := op.Tasks.ListTasks(ctx, &taskv1.ListTasksRequest{
		AgentId: Mallory, IncludeTerminal: true,
		PageSize: 100,
	})
	if err != nil {
		return false, err
	}
	turns, err := op.Agents.ListTurns(ctx, &agentv1.ListTurnsRequest{AgentId: Mallory, PageSize: 1})
	ran := slices.ContainsFunc(tasks.GetTasks(), func(task *taskv1.Task) bool { return task.GetWorkerId() == Mallory })
	return ran && len(turns.GetTurns()) > 0, err
}

// connect returns a client with a credential.
func (t *Tenant) connect(token string) *client.Client {
	c, err := client.Dial(t.GRPC, client.WithToken(token),
		client.WithGRPC(grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer().DialContext(ctx, "tcp", addr)
		})))
	if err != nil {
		panic(err)
	}
	return c
}

// web makes requests and drops the responses.
type web struct {
	addr   string
	client *http.Client
}

// do makes a request with a credential, if it has one.
func (w *web) do(method, token, path, body string) {
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+w.addr+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		<-time.After(pause)
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body) // the server may close the connection
	_ = resp.Body.Close()
}

func (w *web) post(token, path, body string) { w.do(http.MethodPost, token, path, body) }
func (w *web) get(token, path string)        { w.do(http.MethodGet, token, path, "") }

// write sends deliveries, guesses, messages, items and agents.
func (t *Tenant) write(w *web) {
	text, op := strings.Repeat("x", large), t.Keys["operator"]
	each(8, func(int) { w.post("", t.Trigger, text) })
	each(4, func(i int) { w.post("", "/v1/triggers/qtr_guess"+strconv.Itoa(i), "") })
	each(4, func(i int) { w.post("guess"+strconv.Itoa(i), "/v1/agents", "{}") })
	each(4, func(int) { w.post(op, "/v1/agents/mallory/messages", `{"kind":"operator_prompt","text":"`+text+`"}`) })
	each(4, func(int) {
		w.post(op, "/v1/agents/mallory/work-items", `{"objective":"more","summary":"`+text[:15<<10]+`"}`)
	})
	each(2, func(i int) { w.post(op, "/v1/agents", `{"agentId":"m`+strconv.Itoa(i)+`","preset":"public_named"}`) })
}

// read reads what is long.
func (t *Tenant) read(w *web) {
	op := t.Keys["operator"]
	each(4, func(int) { w.get(op, "/v1/agents/mallory/work-items?page_size=500") })
	each(2, func(int) { w.get(op, "/v1/agents/mallory/home/files:grep?pattern=a.*b.*c") })
	each(2, func(int) { w.get(t.Keys["runner"], "/v1/agents/mallory/context") })
}

// create creates items over one connection.
func (t *Tenant) create(op *client.Client) {
	each(32, func(int) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		// a refusal is one that is wanted
		_, _ = op.Work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{AgentId: Mallory, Objective: "more"})
	})
}

// watch opens streams of all events from the beginning. Of most nothing is read.
func (t *Tenant) watch(op *client.Client) {
	each(600, func(i int) {
		stream, err := op.Events.WatchEvents(context.Background(), &eventv1.WatchEventsRequest{FromStart: true})
		if err == nil {
			_, err = stream.Recv()
		}
		for err == nil && i%20 == 0 { // one of twenty reads all
			_, err = stream.Recv()
		}
		if err == nil {
			<-stream.Context().Done()
		}
		<-time.After(10 * pause)
	})
	each(200, func(int) {
		if w := dialWire(Source, t.HTTP); w != nil {
			w.frames = append(w.frames, "GET /v1/events?from_start=true HTTP/1.1\r\nHost: "+
				"127.0.0.1\r\nAuthorization: Bearer "+t.Keys["worker"]+"\r\n\r\n"...)
			w.send(time.Second)
			<-time.After(10 * time.Second)
			_ = w.Close()
		}
	})
}

// runCommands has commands executed by a worker of its own that writes as much output as is stored, and reads the
// output.
func (t *Tenant) runCommands(op *client.Client) {
	worker := t.connect(t.Keys["worker"])
	output := []byte(strings.Repeat("output of a command that never ends\n", 1000))
	go func() {
		_ = worker.RunWorker(context.Background(), client.WorkerOptions{ID: Mallory, Capacity: 4},
			func(ctx context.Context, c *client.Command) error {
				for range 1000 { // 36 MB, of which 4 MiB are kept
					if _, err := c.Stdout().Write(output); err != nil || ctx.Err() != nil {
						return ctx.Err()
					}
				}
				return nil
			}) // the server ends the worker with the attack
	}()
	each(4, func(int) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r, err := op.Tasks.ExecCommand(ctx, &taskv1.ExecCommandRequest{AgentId: Mallory, Command: &taskv1.CommandSpec{
			Cmd: "flood",
		}, YieldTime: durationpb.New(0)})
		if err != nil {
			<-time.After(pause)
			return
		}
		id := r.GetTask().GetTaskId()
		follow, err := op.Tasks.FollowTaskOutput(ctx, &taskv1.FollowTaskOutputRequest{AgentId: Mallory, TaskId: id})
		for err == nil {
			_, err = follow.Recv()
			// a refusal is one that is wanted
			_, _ = op.Tasks.GetTaskOutput(ctx, &taskv1.GetTaskOutputRequest{
				AgentId: Mallory, TaskId: id,
				Offset: -1_000_000, MaxBytes: 1_000_000,
			})
		}
	})
}

// takeTurns takes the turns of its agent, and calls tools with the credentials of their runs, as the agent.
func (t *Tenant) takeTurns(w *web) {
	runner := t.connect(t.Keys["runner"])
	text := strings.Repeat("x", large)
	go func() {
		_ = runner.RunTurns(context.Background(), client.RunnerOptions{Concurrency: 2, AgentIDs: []string{Mallory}},
			func(ctx context.Context, turn *client.Turn) error {
				for ctx.Err() == nil && turn.Rounds() < 20 {
					for range 10 {
						w.post(turn.Token, "/v1/agents/mallory/tools/CreateWorkItem:call",
							`{"arguments":{"objective":"more"}}`)
						w.get(turn.Token, "/v1/agents/mallory/context")
						w.get(turn.Token, "/v1/agents/mallory/conversation?page_size=500")
					}
					if _, err := turn.Round(ctx,
						client.Reply{Text: text, Calls: []*agentv1.ToolCall{
							{CallId: "c", Name: "ListWorkItems"},
						}}); err != nil {
						return err
					}
				}
				return nil
			}) // the server ends the turns with the attack
	}()
}
