package worker_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/must"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

const (
	completed   = taskv1.TaskState_TASK_STATE_COMPLETED
	failed      = taskv1.TaskState_TASK_STATE_FAILED
	cancelled   = taskv1.TaskState_TASK_STATE_CANCELLED
	interrupted = taskv1.TaskState_TASK_STATE_INTERRUPTED
	running     = taskv1.TaskState_TASK_STATE_RUNNING
)

func TestT1_CommandsRun(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	t.Setenv("QUARTET_TEST_SECRET", "s3cret")

	for _, c := range []struct {
		name, line string
		state      taskv1.TaskState
		code       int32
		output     string
	}{
		{"exit 0", "echo hello", completed, 0, "hello\n"},
		{"exit 3", "echo before; exit 3", failed, 3, "before\n"},
		{"both outputs in order", "echo a; sleep 0.1; echo b >&2; sleep 0.1; echo c", completed, 0, "a\nb\nc\n"},
		{"no output", "true", completed, 0, ""},
		{"not found", "no-such-program-here", failed, 127, "not found"},
		{
			"no inherited secrets (T7)", "env | cut -d= -f1 | grep -v QUARTET_ | sort | tr '\\n' ' '", completed, 0,
			"HOME LANG PATH PWD TMPDIR ",
		},
		{"secrets stay", "echo ${QUARTET_TEST_SECRET:-none}", completed, 0, "none\n"},
		{"no input", "cat; echo end", completed, 0, "end\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := r.sh(c.line)
			require.Equal(t, c.state, resp.GetTask().GetState(), resp)
			require.Equal(t, c.code, resp.GetTask().GetExitCode())
			require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_EXITED, resp.GetTask().GetEndReason())
			if c.output == "not found" {
				require.Contains(t, resp.GetOutput(), c.output)
			} else {
				require.Equal(t, c.output, resp.GetOutput())
			}
			require.True(t, resp.GetTask().GetTerminal())
			require.EqualValues(t, len(resp.GetOutput()), resp.GetTask().GetOutputBytes())
			require.False(t, resp.GetOutputTruncated())
		})
	}

	t.Run("signalled", func(t *testing.T) {
		got := r.sh("kill -SEGV $$").GetTask()
		require.Equal(t, failed, got.GetState())
		require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_SIGNALLED, got.GetEndReason())
		require.Equal(t, "ended by SIGSEGV", got.GetEndMessage())
		require.Nil(t, got.ExitCode)
	})
	t.Run("argv", func(t *testing.T) {
		resp := r.exec(&taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{
			Argv: []string{"printf", "%s|", "a b", "$HOME"}, Env: map[string]string{"X": "y"},
		}})
		require.Equal(t, "a b|$HOME|", resp.GetOutput())
	})
	t.Run("env and workdir", func(t *testing.T) {
		dir := filepath.Join(r.root, "sub")
		require.NoError(t, os.Mkdir(dir, 0o700))
		resp := r.exec(&taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{
			Cmd: "echo $X; pwd", Workdir: dir + "/../sub/", Env: map[string]string{"X": "y"},
		}})
		require.Equal(t, "y\n"+dir+"\n", resp.GetOutput())
	})
	t.Run("program that cannot be started", func(t *testing.T) {
		resp := r.exec(&taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Argv: []string{"/no/such/program"}}})
		require.Equal(t, failed, resp.GetTask().GetState())
		require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_SPAWN_FAILED, resp.GetTask().GetEndReason())
		require.Contains(t, resp.GetTask().GetEndMessage(), "command_spawn_failed")
		require.Contains(t, resp.GetTask().GetEndMessage(), "/no/such/program")
	})
}

func TestT7_WorkdirStaysUnderTheRoots(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	outside := t.TempDir()
	require.NoError(t, os.Symlink(outside, filepath.Join(r.root, "link")))
	require.NoError(t, os.WriteFile(filepath.Join(r.root, "file"), nil, 0o600))
	for dir, word := range map[string]string{
		"/":                        "execution_root_violation",
		outside:                    "execution_root_violation",
		r.root + "x":               "execution_root_violation",
		r.root + "/..":             "execution_root_violation",
		r.root + "/link":           "execution_root_violation",
		r.root + "/link/../../etc": "execution_root_violation",
		r.root + "/none":           "workdir_not_found",
		r.root + "/file":           "workdir_not_found",
	} {
		resp := r.exec(&taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Cmd: "echo ran", Workdir: dir}})
		require.Equal(t, failed, resp.GetTask().GetState(), dir)
		require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_SPAWN_FAILED, resp.GetTask().GetEndReason())
		require.Contains(t, resp.GetTask().GetEndMessage(), word, dir)
		require.Empty(t, resp.GetOutput())
	}
}

// What is said of a directory outside of the roots is the same whether it exists, is a file, cannot be entered, or is
// not there, also through a link in a root.
func TestT7_RefusalsDoNotTellWhatExists(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	outside := t.TempDir()
	require.NoError(t, errors.Join(os.Mkdir(filepath.Join(outside, "directory"), 0o700),
		os.WriteFile(filepath.Join(outside, "file"), nil, 0o600), os.Symlink("loop", filepath.Join(outside, "loop")),
		os.Symlink(outside, filepath.Join(r.root, "link"))))
	for _, name := range []string{"directory", "file", "file/x", "loop", "none", "none/x"} {
		inRoot := filepath.Join(r.root, "to-"+strings.ReplaceAll(name, "/", "-"))
		require.NoError(t, os.Symlink(filepath.Join(outside, name), inRoot))
		relative := must.Value(filepath.Rel(r.root, outside))(t)
		for _, dir := range []string{
			filepath.Join(outside, name), filepath.Join(r.root, "link", name), inRoot,
			r.root + "/" + relative + "/" + name,
		} {
			resp := r.exec(&taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{Cmd: "echo ran", Workdir: dir}})
			require.Equal(t, "execution_root_violation: "+filepath.Clean(dir)+
				" is outside the roots of worker local; use a directory under "+r.root, resp.GetTask().GetEndMessage())
		}
	}
}

func TestT6_CharactersAreNotCut(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	// 4095 bytes, then a character of three bytes over the border, in two writes.
	resp := r.sh(
		`head -c 4095 /dev/zero | tr '\0' x; printf '\344'; sleep 0.15; printf 'E' >&2; sleep 0.15; printf '\270\255'; printf '\360\237'; sleep 0.15; printf '\230\200!'; printf '\377'`)
	require.Equal(t, strings.Repeat("x", 4095)+"E中😀!\uFFFD", resp.GetOutput())

	// Pieces of any size join to the text.
	for _, size := range []int32{1, 2, 5, 4096, 4097} {
		all, offset := "", int64(4000)
		for {
			p := must.Value(r.client().GetTaskOutput(r.ctx, &taskv1.GetTaskOutputRequest{
				AgentId: "keeper", TaskId: resp.GetTask().GetTaskId(), Offset: offset, MaxBytes: size,
			}))(t)
			if p.GetText() == "" {
				break
			}
			all, offset = all+p.GetText(), p.GetNextOffset()
		}
		if size >= 4 {
			require.Equal(t, strings.Repeat("x", 95)+"E中😀!\uFFFD", all)
		}
		require.Equal(t, resp.GetTask().GetOutputBytes(), offset)
	}
}

func TestT6_GrandchildHoldingThePipe(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	resp := r.sh("sleep 300 & echo started")
	require.Equal(t, completed, resp.GetTask().GetState())
	require.Equal(t, "started\n", resp.GetOutput())
	// The kernel removes a killed process a moment later.
	require.Eventually(t, func() bool { return alive(t, "QUARTET_TASK_ID="+resp.GetTask().GetTaskId()) == 0 },
		10*time.Second, 5*time.Millisecond, "nothing of it lives on")
}

func TestT3_StopEndsTheWholeGroup(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	for name, line := range map[string]string{
		"child":             "sleep 300 & echo up; wait",
		"child and session": "setsid sleep 300 & sleep 300 & echo up; wait",
		"stopped group":     "sh -c 'echo up; kill -STOP 0' & wait",
	} {
		t.Run(name, func(t *testing.T) {
			id := r.background(&taskv1.CommandSpec{Cmd: line})
			r.awaitOutput(id, "up")
			require.NotZero(t, alive(t, "QUARTET_TASK_ID="+id))
			got := must.Value(r.client().StopTask(r.ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: id}))(t)
			require.Equal(t, taskv1.TaskState_TASK_STATE_CANCELLING, got.GetTask().GetState())
			end := r.await(id)
			require.Equal(t, cancelled, end.GetState())
			require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_STOPPED, end.GetEndReason())
			require.Zero(t, alive(t, "QUARTET_TASK_ID="+id))
			require.Equal(t, []string{"task_queued", "task_started", "task_cancelling", "task_cancelled"}, r.events(id))
		})
	}
}

func TestT3_SecondStopKills(t *testing.T) {
	r := newRig(t)
	r.worker(nil) // its grace is longer than this test waits
	id := r.background(&taskv1.CommandSpec{Cmd: "trap 'echo term' TERM; echo up; while :; do sleep 0.05; done"})
	r.awaitOutput(id, "up")
	stop := &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: id}
	must.Value(r.client().StopTask(r.ctx, stop))(t)
	r.awaitOutput(id, "term")
	require.Equal(t, taskv1.TaskState_TASK_STATE_CANCELLING, r.get(id).GetState())
	must.Value(r.client().StopTask(r.ctx, stop))(t)
	end := r.await(id)
	require.Equal(t, cancelled, end.GetState())
	require.Nil(t, end.ExitCode)
	must.Fail(r.client().StopTask(r.ctx, stop))(t, "TASK_NOT_RUNNING")
}

func TestT1_TimeLimit(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	resp := r.exec(&taskv1.ExecCommandRequest{
		Command: &taskv1.CommandSpec{
			Cmd:     "sleep 300 & echo up; wait",
			Timeout: durationpb.New(200 * time.Millisecond),
		},
		YieldTime: durationpb.New(20 * time.Second),
	})
	require.Equal(t, failed, resp.GetTask().GetState())
	require.Equal(t, taskv1.TaskEndReason_TASK_END_REASON_TIMEOUT, resp.GetTask().GetEndReason())
	require.Equal(t, "up\n", resp.GetOutput())
	require.Zero(t, alive(t, "QUARTET_TASK_ID="+resp.GetTask().GetTaskId()))
}

func TestT3_Input(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	send := func(id, text string, end bool) *taskv1.SendTaskInputResponse {
		return must.Value(r.client().SendTaskInput(r.ctx, &taskv1.SendTaskInputRequest{
			AgentId: "keeper", TaskId: id, Text: text, EndOfInput: end,
		}))(t)
	}
	t.Run("stdin", func(t *testing.T) {
		id := r.background(&taskv1.CommandSpec{
			Cmd:          "while read -r line; do echo \"got $line\"; done; echo end",
			AcceptsInput: true,
		})
		r.eventually(func() bool { return r.get(id).GetAcceptsInputNow() })
		resp := send(id, "one\n", false)
		require.True(t, resp.GetAcceptedInput())
		require.Equal(t, "stdin", resp.GetInputTarget())
		require.EqualValues(t, 4, resp.GetBytesWritten())
		r.awaitOutput(id, "got one")
		send(id, "two\nthree\n", true)
		require.Equal(t, completed, r.await(id).GetState())
		require.Equal(t, "got one\ngot two\ngot three\nend\n", r.awaitOutput(id, "end"))
		late := send(id, "x", false)
		require.False(t, late.GetAcceptedInput())
		require.Equal(t, "task_not_running", late.GetReason())
	})
	t.Run("terminal", func(t *testing.T) {
		id := r.background(&taskv1.CommandSpec{Cmd: "test -t 0 && test -t 1 && stty -echo && echo tty; read -r line; " +
			"echo \"got $line\"; cat", Tty: true})
		r.awaitOutput(id, "tty")
		require.Equal(t, "tty", send(id, "hi\n", false).GetInputTarget())
		r.awaitOutput(id, "got hi")
		send(id, "", true)
		require.Equal(t, completed, r.await(id).GetState())
	})
	t.Run("terminal is stopped with its children", func(t *testing.T) {
		id := r.background(&taskv1.CommandSpec{Cmd: "sleep 300 & echo up; wait", Tty: true})
		r.awaitOutput(id, "up")
		must.Value(r.client().StopTask(r.ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: id}))(t)
		require.Equal(t, cancelled, r.await(id).GetState())
		require.Zero(t, alive(t, "QUARTET_TASK_ID="+id))
	})
	t.Run("none", func(t *testing.T) {
		id := r.background(&taskv1.CommandSpec{Cmd: "echo up; exec sleep 300"})
		r.awaitOutput(id, "up")
		require.Equal(t, "input_not_accepted", send(id, "x", false).GetReason())
		must.Value(r.client().StopTask(r.ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: id}))(t)
		r.await(id)
	})
}

func TestT6_EndlessOutputIsBounded(t *testing.T) {
	r := newRig(t)
	r.worker(nil)
	id := r.background(&taskv1.CommandSpec{Cmd: "yes 0123456789"})
	r.eventually(func() bool { return r.get(id).GetOutputBytes() > 12<<20 })
	must.Value(r.client().StopTask(r.ctx, &taskv1.StopTaskRequest{AgentId: "keeper", TaskId: id}))(t)
	end := r.await(id)
	require.Equal(t, cancelled, end.GetState())
	require.True(t, end.GetOutputTruncated())
	tail := must.Value(r.client().GetTaskOutput(r.ctx, &taskv1.GetTaskOutputRequest{
		AgentId: "keeper", TaskId: id, Offset: -100,
	}))(t)
	require.Contains(t, tail.GetText(), "0123456789\n0123456789\n")
	require.Equal(t, end.GetOutputBytes(), tail.GetTotalBytes())
	first := must.Value(r.client().GetTaskOutput(r.ctx, &taskv1.GetTaskOutputRequest{AgentId: "keeper", TaskId: id}))(t)
	require.True(t, first.GetTruncated())
	require.Greater(t, first.GetOffset(), int64(7<<20))
}
