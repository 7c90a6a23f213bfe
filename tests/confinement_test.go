package tests

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/keyfile"
	"quartet/pkg/localtoken"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/tests/proc"
)

// secretWord stands in every file and variable that a command must not read.
const secretWord = "SECRET-OF-THE-SERVER"

// outputOf returns the output of an ended task.
func (s *workshop) outputOf(task *taskv1.Task) string {
	s.t.Helper()
	r, err := s.tasks.GetTaskOutput(s.ctx, &taskv1.GetTaskOutputRequest{AgentId: "keeper", TaskId: task.GetTaskId()})
	require.NoError(s.t, err)
	return r.GetText()
}

// TestT10_CommandsCannotBecomeTheServer has commands of the embedded worker and of a worker of its own
// look for the keys and credentials of both.
func TestT10_CommandsCannotBecomeTheServer(t *testing.T) {
	binary(t)                                     // which needs the real home
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretWord) // servers and workers inherit it
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	require.NoError(t, os.MkdirAll(filepath.Join(home, ".ssh"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "id_ed25519"), []byte(secretWord), 0o600))
	s := newWorkshop(t, "--worker-pools", "default", "--worker-labels", "id=embedded")
	key := must.Value(os.ReadFile(filepath.Join(s.srv.DataDir, "key")))(t)
	token := must.Value(localtoken.Read(s.srv.HTTP))(t)
	require.NotEmpty(t, token)
	s.worker("own")
	for _, worker := range []string{"embedded", "own"} {
		spec := &taskv1.CommandSpec{WorkerLabels: map[string]string{"id": worker}}
		for _, command := range []string{
			"cat " + s.srv.DataDir + "/key",
			"ls -laR " + s.srv.DataDir,
			"cat /proc/[0-9]*/environ | tr '\\0' '\\n'",
			"cat /proc/$PPID/environ /proc/$PPID/cmdline",
			"cat /proc/1/environ; ls /proc/1/root/",
			"env",
			"cat " + home + "/.ssh/id_ed25519; cat ~/.ssh/*",
			"cat " + localtoken.Path(s.srv.HTTP) + " " + localtoken.Dir() + "/*; ls -la " + localtoken.Dir(),
			"cat /etc/shadow",
			"kill -9 -1; sleep 0.1; kill -9 1; kill -9 $PPID; true",
			"git init -q e && cd e && git config core.fsmonitor 'cat " + s.srv.DataDir + "/key >&2' && git status",
			"ln -s " + s.srv.DataDir + "/key k; cat k; cp k stolen; cat stolen",
			"find / -name key -path '*data*' -exec cat {} + 2>&1",
		} {
			spec.Cmd = command
			task := s.exec(40*time.Second, spec)
			out := s.outputOf(task)
			require.NotEqual(t, taskv1.TaskState_TASK_STATE_RUNNING, task.GetState(), command)
			require.NotContains(t, out, secretWord, "%s worker: %s", worker, command)
			require.NotContains(t, out, strings.TrimSpace(string(key)), "%s worker: %s", worker, command)
			require.NotContains(t, out, token, "%s worker: %s", worker, command)
		}
		spec.Cmd = "(exec 3<>/dev/tcp/" + strings.ReplaceAll(s.srv.HTTP, ":", "/") + ") 2>&1 && echo connected"
		spec.Argv, spec.Cmd = []string{"bash", "-c", spec.GetCmd()}, ""
		require.NotContains(t, s.outputOf(s.exec(40*time.Second, spec)), "connected", "%s worker: the server's port",
			worker)
		spec.Argv = nil
	}
}

// TestT10_ARotatedKeyStaysHidden replaces the secrets of a server in a directory that commands may read, while one
// looks for them.
func TestT10_ARotatedKeyStaysHidden(t *testing.T) {
	conf := must.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	key, config, env := filepath.Join(conf, "key"), filepath.Join(conf, "quartet.yaml"),
		filepath.Join(conf, "app", "env")
	secret := "bootstrap-token: " + secretWord + strings.Repeat("-", 32) + "\n"
	require.NoError(t, errors.Join(os.Mkdir(filepath.Dir(env), 0o755), os.WriteFile(config, []byte(secret), 0o644),
		os.WriteFile(env, []byte(secretWord), 0o644), os.WriteFile(filepath.Join(conf, "public"), []byte("public"),
			0o644)))
	s := newWorkshop(t, "--worker-pools", "default", "--worker-roots", t.TempDir(), "--key-file", key, "--config",
		config, "--worker-readable", conf, "--worker-hidden", env)
	task := s.exec(0, &taskv1.CommandSpec{Cmd: "until cat " + strings.Join([]string{
		conf + "/*",
		conf + "/.*", conf + "/app/*",
	}, " ") + "; test -e stop; do :; done 2>/dev/null | sort -u"})
	stop := &taskv1.CommandSpec{Cmd: "cat " + conf + "/public; touch stop"}
	rotated, err := keyfile.Update(key, func(r keyfile.Ring) (keyfile.Ring, error) { return r.Add(time.Now()) })
	require.NoError(t, err)
	for _, path := range []string{config, env} {
		require.NoError(t, errors.Join(os.WriteFile(path+".new", []byte(secret), 0o644), os.Rename(path+".new", path)))
	}
	require.Equal(t, "public", s.outputOf(s.exec(40*time.Second, stop)))
	s.eventually(func() bool { return s.get(task.GetTaskId()).GetEndedAt() != nil }, "the command did not end")
	out := s.outputOf(task)
	require.Contains(t, out, "public")
	require.NotContains(t, out, secretWord)
	raw := must.Value(os.ReadFile(key))(t)
	for line := range strings.Lines(string(raw)) {
		require.NotContains(t, out+"\n", line)
	}
	require.NotEmpty(t, rotated.IDs())
}

// TestT10_OrdinaryWorkIsPossible runs what agents run all day: a repository, a build, a server on loopback.
func TestT10_OrdinaryWorkIsPossible(t *testing.T) {
	t.Parallel() // most of it is waiting
	s := newWorkshop(t, "--worker-pools", "default")
	for _, c := range []struct{ command, want string }{
		{"git init -q r && cd r && echo hello > f && git add f && git -c user.name=a -c user.email=a@b commit -qm " +
			"first && git log --format=%s", "first"},
		{"mkdir -p g && cd g && printf 'module m\\n' > go.mod && printf 'package main\\nfunc main() { println(40+2) " +
			"}\\n' > m.go && CGO_ENABLED=0 go run . 2>&1", "42"},
		{"cd g && printf 'package main\\nimport (\"testing\"; \"net\")\\nfunc TestX(t *testing.T) { l, err := " +
			"net.Listen(\"tcp\", \"127.0.0.1:0\"); if err != nil { t.Fatal(err) }; if _, err := net.Dial(\"tcp\", " +
			"l.Addr().String()); err != nil { t.Fatal(err) } }\\n' > m_test.go && CGO_ENABLED=0 go test -vet=off . 2>&1 | cut -c1-2", "ok"},
		{"echo kept > ~/kept; echo tmp > $TMPDIR/f; cat ~/kept $TMPDIR/f", "kept\ntmp"},
		{"cat ~/kept", "kept"},
		{"sh -c 'sleep 0.1; echo late' & wait; echo done", "late\ndone"},
		{"diff <(echo a) <(echo a) && echo same", "same"},
	} {
		task := s.exec(0, &taskv1.CommandSpec{Argv: []string{"bash", "-c", c.command}})
		require.Eventually(t, func() bool {
			task = s.get(task.GetTaskId())
			return task.GetEndedAt() != nil
		}, 5*time.Minute, 50*time.Millisecond, c.command)
		require.Equal(t, c.want, strings.TrimSpace(s.outputOf(task)), c.command)
		require.Equal(t, int32(0), task.GetExitCode(), c.command)
	}
}

// TestT10_TheEmbeddedWorkerMustBeAskedFor: where credentials are required, a process with all services executes
// nothing unless embedded-worker is on.
func TestT10_TheEmbeddedWorkerMustBeAskedFor(t *testing.T) {
	bin := binary(t)
	for _, c := range []struct {
		settings []string
		executes bool
	}{
		{[]string{}, true},
		{[]string{"--embedded-worker", "off"}, false},
		{[]string{"--auth", "required", "--bootstrap-token", bootstrap}, false},
		{[]string{"--auth", "required", "--bootstrap-token", bootstrap, "--embedded-worker", "on"}, true},
	} {
		srv := must.Value(proc.NewQuartet(bin, filepath.Join(t.TempDir(), "data"), "",
			append(c.settings, "--log-level", "info")...))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.NoError(t, srv.Start(ctx))
		_, err := os.Stat(filepath.Join(srv.DataDir, "worker", "quartet-worker-local.lock"))
		require.Equal(t, c.executes, err == nil, c.settings)
		require.NoError(t, srv.Kill())
		log := must.Value(os.ReadFile(srv.Log))(t)
		require.Equal(t, c.executes && len(c.settings) > 2, strings.Contains(string(log), "holds the installation's "+
			"keys and executes commands"), c.settings)
		cancel()
	}
}

// TestT10_CommandsAreRefusedWhereNothingConfines starts a worker that cannot have what it wants.
func TestT10_CommandsAreRefusedWhereNothingConfines(t *testing.T) {
	s := newWorkshop(t)
	nothing := t.TempDir()
	w := &proc.Process{
		Binary: s.bin, Log: filepath.Join(t.TempDir(), "worker.log"),
		Args: []string{
			"worker", "--address", s.srv.GRPC, "--root", nothing, "--hidden", nothing, "--state-dir",
			t.TempDir(), "--id", "bare", "--label", "id=bare",
		},
		Ready: func(ctx context.Context) bool { return true },
	}
	require.NoError(t, w.Start(s.ctx))
	t.Cleanup(func() { _ = w.Kill() })
	task := s.exec(40*time.Second, &taskv1.CommandSpec{Cmd: "echo ran > ran", WorkerLabels: map[string]string{
		"id": "bare",
	}})
	require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_SPAWN_FAILED, task.GetEndReason())
	require.Contains(t, task.GetEndMessage(), "confinement_unavailable")
	require.Contains(t, task.GetEndMessage(), "--unconfined")
	require.NoFileExists(t, filepath.Join(nothing, "ran"))
}

// TestT10_HandlersAreConfined: a handler of steps has its directories and variables, and nothing else of its worker.
func TestT10_HandlersAreConfined(t *testing.T) {
	bin := binary(t)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretWord)
	t.Setenv("GREETING", "hello")
	s := newWorkshop(t)
	shared, state := t.TempDir(), t.TempDir()
	quartet := func(args ...string) string {
		out, err := exec.CommandContext(s.ctx, bin, append([]string{"--address", s.srv.GRPC}, args...)...).
			CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
		return string(out)
	}
	file := filepath.Join(t.TempDir(), "board.yaml")
	require.NoError(t, os.WriteFile(file, []byte("board: b\nwal: b\ntitle: B\npool: work\nsteps:\n  - {id: one, "+
		"title: One}\n"), 0o600))
	quartet("board", "apply", "keeper", file)
	quartet("board", "open", "keeper/b", "work")
	handler := "cat " + s.srv.DataDir + "/key /proc/[0-9]*/environ 2>/dev/null; env; echo shared > " + shared +
		"/f; echo x > " + state + "/x; cat ~/kept; echo kept > ~/kept; echo end"
	w := &proc.Process{
		Binary: bin, Args: []string{
			"--address", s.srv.GRPC, "worker", "--pool", "work", "--id", "confined", "--writable",
			shared, "--env", "GREETING", "--state-dir", state, "--handler", handler,
		},
		Log: filepath.Join(t.TempDir(), "worker"), Ready: func(context.Context) bool { return true },
	}
	require.NoError(t, w.Start(s.ctx))
	t.Cleanup(func() { _ = w.Kill() })
	var said string
	s.eventually(func() bool {
		said = quartet("board", "get", "keeper/b", "-o", "json")
		return strings.Contains(said, "GREETING=hello")
	}, "the step did not end: %s", said)
	key := must.Value(os.ReadFile(filepath.Join(s.srv.DataDir, "key")))(t)
	require.NotContains(t, said, secretWord)
	require.NotContains(t, said, strings.TrimSpace(string(key)))
	require.NotContains(t, said, "QUARTET_TOKEN")
	require.FileExists(t, filepath.Join(shared, "f"))
	require.NoFileExists(t, filepath.Join(state, "x"))
}

// TestT10_AgentsApart has an agent look for what another one of its worker has, where the worker isolates agents.
func TestT10_AgentsApart(t *testing.T) {
	t.Parallel() // most of it is waiting
	s := newWorkshop(t)
	s.worker("apart", "--isolate", "agent")
	must.Value(s.agents.SpawnAgent(s.ctx, &agentv1.SpawnAgentRequest{
		AgentId: "builder",
		Preset:  agentv1.Preset_PRESET_PUBLIC_NAMED,
	}))(t)
	run := func(agentID, workdir, command string) string {
		t.Helper()
		r := must.Value(s.tasks.ExecCommand(s.ctx, &taskv1.ExecCommandRequest{
			AgentId: agentID, YieldTime: durationpb.New(40 * time.Second), Command: &taskv1.CommandSpec{
				Argv: []string{"bash", "-c", command}, Workdir: workdir, WorkerLabels: map[string]string{"id": "apart"},
			},
		}))(t)
		if r.GetTask().GetState() != taskv1.TaskState_TASK_STATE_RUNNING {
			return r.GetOutput() + r.GetTask().GetEndMessage()
		}
		// A search through all files of the machine may take longer.
		of := &taskv1.GetTaskOutputRequest{AgentId: agentID, TaskId: r.GetTask().GetTaskId()}
		var out *taskv1.GetTaskOutputResponse
		s.eventually(func() bool {
			out = must.Value(s.tasks.GetTaskOutput(s.ctx, of))(t)
			return out.GetTask().GetState() != taskv1.TaskState_TASK_STATE_RUNNING
		}, "%s ends", command)
		return out.GetText() + out.GetTask().GetEndMessage()
	}
	builders := filepath.Join(s.root, "default", "builder")
	require.Contains(t, run("builder", "", "echo "+secretWord+" | tee f ~/f $TMPDIR/f /tmp/f > /dev/null; (while :; "+
		"do sleep 1; done) & pwd"), builders)
	for _, command := range []string{
		"cat " + builders + "/f; ls -laR " + s.root,
		"cat ../builder/f ../../default/builder/f",
		"ln -s " + builders + " there; cat there/f; ln -s ../builder up; cat up/f; cp -r ../.. copy; cat copy/*/f",
		"ln " + builders + "/f hard; cat hard",
		"mkdir -p " + builders + "; echo x > " + builders + "/planted",
		"mv " + s.root + "/default " + s.root + "/moved; mount --bind " + s.root + " .; unshare -rm mount --bind " +
			s.root + " .; ls -R . | head; cat default/builder/f",
		"cat /tmp/f $TMPDIR/../*/f ~/../*/f ~/../../*/*/f",
		"cat /proc/[0-9]*/root" + builders + "/f /proc/[0-9]*/cwd/f",
		"find / -name f -exec cat {} + 2>/dev/null",
	} {
		require.NotContains(t, run("keeper", "", command), secretWord, command)
	}
	require.Contains(t, run("keeper", builders, "cat f"), "execution_root_violation")
	require.Contains(t, run("keeper", s.root, "ls"), "execution_root_violation")
	require.NotContains(t, run("builder", "", "ls; cat f"), "planted")
	// What agents do all day is possible there.
	require.Contains(t, run("keeper", "", "git init -q r && cd r && echo hello > f && git add f && git -c "+
		"user.name=a -c user.email=a@b commit -qm first && git log --format=%s"), "first")

	// The command line says what is wrong.
	for want, args := range map[string][]string{
		`isolation "agents": must be none, namespace or agent`: {"--root", s.root, "--isolate", "agents"},
		"divides one root, and there are 2": {
			"--root", s.root, "--root", t.TempDir(), "--isolate",
			"namespace",
		},
		"--isolate is for commands, with --root": {
			"--pool", "p", "--handler", "true", "--isolate",
			"agent",
		},
	} {
		out, err := exec.CommandContext(s.ctx, s.bin, append([]string{"worker", "--address", s.srv.GRPC}, args...)...).
			CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), want)
	}
}
