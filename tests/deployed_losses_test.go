//go:build deployed

package tests

import (
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/tests/load"
)

// compose is a deployment of docker-compose.yml that a test may do harm to.
type compose struct {
	t   *testing.T
	dir string
	env []string
}

func (c *compose) run(args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out := must.Value(cmd.Output())(c.t, "%v: %s", args, errs.String())
	return strings.TrimSpace(string(out))
}

// containers returns those of a service.
func (c *compose) containers(service string) []string {
	c.t.Helper()
	label := "label=com.docker.compose."
	ids := strings.Fields(c.run("docker", "ps", "-a", "-q", "--no-trunc", "--filter", label+"project="+
		os.Getenv("COMPOSE_PROJECT_NAME"), "--filter", label+"service="+service))
	require.NotEmpty(c.t, ids, service)
	return ids
}

// crash is SIGKILL to a container's process, as if it had died by itself: Docker
// starts it again.
func (c *compose) crash(container string) {
	c.t.Helper()
	c.run("kill", "-9", c.run("docker", "inspect", "--format", "{{.State.Pid}}", container))
}

// ready waits until every container of a service says so. It asks as the health
// check does, and sooner.
func (c *compose) ready(service string) {
	c.t.Helper()
	for _, id := range c.containers(service) {
		require.Eventually(c.t, func() bool {
			return exec.CommandContext(c.t.Context(), "docker", "exec", id, "/quartet", "ready").Run() == nil
		}, 2*time.Minute, time.Second, service)
	}
}

// restart ends containers of a service in order, one after the other, and waits
// for each.
func (c *compose) restart(service string) {
	c.t.Helper()
	for _, id := range c.containers(service) {
		c.run("docker", "restart", "-t", "20", id)
	}
}

var deployedWorks = flag.Int("deployed-works", 1, "how many instances of the work service take part")

// planeServices are the processes of the deployment, in the order of their names in
// docker-compose.yml.
var planeServices = []string{"agent", "work", "task", "waiting", "board", "identity", "scheduler", "gateway"}

// TestX1_NothingIsLostInTheDeployment goes on working while everything there is
// is killed or restarted, a piece at a time: mutations by eight drivers, the
// release keeper's job, and commands on four workers. At the end every answer is
// compared with what the API says: none is lost, none took effect twice (SPEC X1,
// X2, X10, T4).
func TestX1_NothingIsLostInTheDeployment(t *testing.T) {
	binary(t) // so that its building counts for nobody's deadline
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	c := &compose{t: t, dir: *deployedDir}
	root := must.Value(grpc.NewClient(*deployedGRPC, bearing(os.Getenv("QUARTET_TOKEN"))...))(t)
	t.Cleanup(func() { _ = root.Close() })

	// Several instances of a plane: `docker compose up --scale work=3` belongs here,
	// and the crash of one of them among the steps below.
	if n := *deployedWorks; n > 1 {
		c.run("docker", "compose", "up", "-d", "--no-build", "--no-deps", "--scale", fmt.Sprintf("work=%d", n), "work")
		require.Len(t, c.containers("work"), n)
		c.ready("work")
	}

	// Four workers of the deployment, with a key of this test's namespace.
	run := strings.ToLower(rand.Text()[:8]) // so that it can be done again
	jobs := newJobs(t, ctx, c, root, run)
	keeper := startKeeper(t, ctx, root, "release-"+run)
	admin := keyOf(t, ctx, root, identityv1.Role_ROLE_ADMIN, "losses-"+run)
	w := newWorkload(t, ctx, *deployedGRPC, random(t), func(i int) bool { return i%2 == 0 }, bearing(admin)...)
	w.Pace(50 * time.Millisecond) // all of the deployment is on this machine
	stop := w.start()
	jobs.start(ctx)

	step := func(name string, f func()) {
		began := time.Now()
		f()
		if t.Failed() {
			t.FailNow()
		}
		t.Logf("%s, after %s: %d commands ended so far", name, time.Since(began).Round(time.Millisecond), jobs.mark())
	}
	// progress is each loss's proof that the rest goes on.
	progress := func() {
		t.Helper()
		m := jobs.mark()
		require.Eventually(t, func() bool { return jobs.since(m) >= 8 || t.Failed() }, 2*time.Minute,
			50*time.Millisecond, "commands end")
	}
	step("all four workers took commands", func() {
		require.Eventually(t, func() bool { return jobs.workers() == 4 || t.Failed() }, time.Minute,
			100*time.Millisecond)
	})
	step("a NATS server is gone, and comes back", func() {
		id := c.containers("nats-2")[0]
		c.run("docker", "kill", id)
		progress()
		c.run("docker", "start", id)
		progress()
	})
	for _, service := range []string{"gateway", "work", "agent", "task"} {
		step(service+" is killed", func() {
			c.crash(c.containers(service)[0]) // of several instances one
			progress()
			c.ready(service)
		})
	}
	step("a worker is killed", func() {
		c.crash(c.containers("worker")[0])
		progress()
	})
	step("every service is restarted, one after the other", func() {
		for _, service := range planeServices {
			c.restart(service)
			c.ready(service)
		}
		progress()
	})
	step("every NATS server is restarted, one after the other", func() {
		for _, service := range []string{"nats-1", "nats-2", "nats-3"} {
			c.restart(service)
			progress()
		}
	})

	jobs.finish()
	stop()
	require.NoError(t, w.Audit(ctx))
	jobs.audit(ctx)
	require.NoError(t, keeper(), "the release keeper's job")
	t.Logf("%d mutations answered, %d of unknown outcome, %d events, %d turns, %d commands: none lost, none twice",
		w.Answered(), w.Unknown(), len(w.Watcher.Seen), w.Runner.Turns, len(jobs.ended))
}

// startKeeper runs the release keeper over the gateway, on a repository of a few
// packages, with a worker of its own on this machine; the function waits for it.
func startKeeper(t *testing.T, ctx context.Context, root grpc.ClientConnInterface, namespace string) (
	wait func() error,
) {
	repo := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(repo, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(repo, name), []byte(text), 0o600))
	}
	write("go.mod", "module example.com/release\n\ngo 1.24\n")
	for i := range 6 {
		write(fmt.Sprintf("p%d/p.go", i), fmt.Sprintf("// Package p%d is to be released.\npackage p%d\n", i, i))
		write(fmt.Sprintf("p%d/p_test.go", i), fmt.Sprintf("package p%d\n\nimport "+
			"(\n\t\"testing\"\n\t\"time\"\n)\n\nfunc TestSlowly(*testing.T) { time.Sleep(3 * time.Second) }\n", i))
	}
	bin := binary(t)
	log := filepath.Join(repo, "worker.log")
	out := must.Value(os.Create(log))(t)
	worker := exec.Command(bin, "worker", "--root", repo, "--unconfined", "--state-dir", t.TempDir(), "--address",
		*deployedGRPC, "--tls")
	worker.Env = append(os.Environ(), "QUARTET_TOKEN="+keyOf(t, ctx, root, identityv1.Role_ROLE_WORKER, namespace))
	worker.Stdout, worker.Stderr = out, out
	require.NoError(t, worker.Start())
	t.Cleanup(func() {
		_ = worker.Process.Signal(os.Interrupt)
		_ = worker.Wait()
		_ = out.Close()
	})
	keeperBin := filepath.Join(t.TempDir(), "release-keeper")
	built, err := exec.CommandContext(ctx, "go", "build", "-o", keeperBin, "../examples/release-keeper").
		CombinedOutput()
	require.NoError(t, err, string(built))
	cmd := exec.CommandContext(ctx, keeperBin, "--repo", repo, "--server", *deployedGRPC, "--limit", "18m")
	cmd.Env = append(os.Environ(), "QUARTET_TOKEN="+keyOf(t, ctx, root, identityv1.Role_ROLE_ADMIN, namespace))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	return func() error {
		err := cmd.Wait()
		text := said.String()
		if err != nil {
			worker, _ := os.ReadFile(log)
			return fmt.Errorf("%w\n%s\nits worker said:\n%s", err, text[max(0, len(text)-20000):],
				worker[max(0, len(worker)-3000):])
		}
		t.Log(text[max(0, len(text)-600):])
		return nil
	}
}

// chores are commands of agents on the deployment's workers. Each leaves a line
// where all workers leave theirs, so that it can be counted how often it ran.
type chores struct {
	t      *testing.T
	c      *compose
	agents agentv1.AgentServiceClient
	tasks  taskv1.TaskServiceClient
	file   string // that all workers write to
	quit   chan struct{}
	all    sync.WaitGroup

	mu    sync.Mutex
	ended map[string]*taskv1.Task // by what they write
	seen  map[string]bool         // workers
}

const jobLoops = 16 // as many commands at once as four workers take

func newJobs(t *testing.T, ctx context.Context, c *compose, root grpc.ClientConnInterface, run string) *chores {
	namespace := "jobs-" + run
	c.env = []string{"QUARTET_WORKER_TOKEN=" + keyOf(t, ctx, root, identityv1.Role_ROLE_WORKER, namespace)}
	c.run("docker", "compose", "--profile", "workers", "up", "-d", "--no-build", "--no-deps", "--force-recreate",
		"--scale", "worker=4", "worker")
	require.Len(t, c.containers("worker"), 4)
	conn := dial(t, *deployedGRPC, bearing(keyOf(t, ctx, root, identityv1.Role_ROLE_ADMIN, namespace))...)
	return &chores{
		t: t, c: c, agents: agentv1.NewAgentServiceClient(conn), tasks: taskv1.NewTaskServiceClient(conn),
		file: "/workspace/ran-" + run, quit: make(chan struct{}), ended: map[string]*taskv1.Task{},
		seen: map[string]bool{},
	}
}

func (j *chores) start(ctx context.Context) {
	for i := range jobLoops {
		j.all.Go(func() {
			if err := j.loop(ctx, i); err != nil {
				j.t.Error(err)
			}
		})
	}
}

func (j *chores) loop(ctx context.Context, i int) error {
	agent := fmt.Sprintf("jobs-%d", i)
	if _, err := load.Again(ctx, func(ctx context.Context) (*agentv1.SpawnAgentResponse, error) {
		return j.agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: agent, RequestId: "spawn-" + agent, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		})
	}); err != nil {
		return err
	}
	for n := 0; ; n++ {
		select {
		case <-j.quit:
			return nil
		default:
		}
		line := fmt.Sprintf("%s-%d", agent, n)
		req := &taskv1.ExecCommandRequest{
			AgentId: agent, RequestId: line, YieldTime: durationpb.New(0),
			Command: &taskv1.CommandSpec{Cmd: "sleep 0.5; echo " + line + " >> " + j.file + "; echo " + line},
		}
		exec := func(ctx context.Context) (*taskv1.ExecCommandResponse, error) { return j.tasks.ExecCommand(ctx, req) }
		made, err := load.Again(ctx, exec)
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		id := made.GetHandle().GetTaskId()
		for {
			got, err := load.Again(ctx, func(ctx context.Context) (*taskv1.GetTaskResponse, error) {
				return j.tasks.GetTask(ctx, &taskv1.GetTaskRequest{AgentId: agent, TaskId: id})
			})
			if err != nil {
				return fmt.Errorf("%s, which was answered, is lost: %w", line, err)
			}
			j.mu.Lock()
			if w := got.GetTask().GetWorkerId(); w != "" {
				j.seen[w] = true
			}
			if got.GetTask().GetTerminal() {
				j.ended[line] = got.GetTask()
				j.mu.Unlock()
				break
			}
			j.mu.Unlock()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
		}
		if again, err := load.Again(ctx, exec); err != nil || again.GetHandle().GetTaskId() != id {
			return fmt.Errorf("%s was asked for again and is %s instead of %s: %w", line, again.GetHandle().GetTaskId(),
				id, err)
		}
	}
}

func (j *chores) mark() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.ended)
}

func (j *chores) since(mark int) int { return j.mark() - mark }

func (j *chores) workers() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.seen)
}

func (j *chores) finish() {
	close(j.quit)
	j.all.Wait()
}

// audit compares what was answered with what stands in the shared file, and with
// the tasks as the API has them now.
func (j *chores) audit(ctx context.Context) {
	ran := map[string]int{}
	for line := range strings.FieldsSeq(j.c.run("docker", "compose", "--profile", "workers", "exec", "-T", "worker",
		"cat", j.file)) {
		ran[line]++
	}
	listed := map[string]string{} // task by line
	for i := range jobLoops {
		agent := fmt.Sprintf("jobs-%d", i)
		for token := ""; ; {
			page := must.Value(load.Again(ctx, func(ctx context.Context) (*taskv1.ListTasksResponse, error) {
				return j.tasks.ListTasks(ctx, &taskv1.ListTasksRequest{
					AgentId: agent, IncludeTerminal: true, PageSize: 500, PageToken: token,
				})
			}))(j.t)
			for _, task := range page.GetTasks() {
				words := strings.Fields(task.GetCommand().GetCmd())
				line := words[len(words)-1]
				require.Empty(j.t, listed[line], "%s was queued twice", line)
				listed[line] = task.GetTaskId()
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
	}
	require.Len(j.t, listed, len(j.ended), "a command for each answer")
	lost := 0
	for line, task := range j.ended {
		require.Equal(j.t, task.GetTaskId(), listed[line], line)
		switch {
		case task.GetEndReason() == taskv1.TaskEndReason_TASK_END_REASON_EXITED && task.GetExitCode() == 0:
			require.Equal(j.t, 1, ran[line], "%s ended well", line)
		case task.GetEndReason() == taskv1.TaskEndReason_TASK_END_REASON_WORKER_LOST ||
			task.GetEndReason() == taskv1.TaskEndReason_TASK_END_REASON_WORKER_STOPPED:
			lost++
			require.LessOrEqual(j.t, ran[line], 1, "%s ended with its worker", line)
		default:
			j.t.Errorf("%s ended as %s: %s", line, task.GetEndReason(), task.GetEndMessage())
		}
	}
	require.LessOrEqual(j.t, lost, 4, "one worker was killed, with four commands at most")
}
