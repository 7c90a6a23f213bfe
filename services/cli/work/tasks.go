package work

import (
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/pbjson"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

// TaskCommand returns `quartet task`.
func TaskCommand(s *session.Session) *cobra.Command {
	c := input.Group(&cobra.Command{
		Use: "task", Short: "Tasks: commands that workers execute",
		Aliases: []string{"tasks"},
	})
	c.AddCommand(taskExecCommand(s), taskListCommand(s), taskGetCommand(s), taskOutputCommand(s), taskInputCommand(s),
		taskStopCommand(s))
	return c
}

// taskExecCommand returns `quartet task exec`.
func taskExecCommand(s *session.Session) *cobra.Command {
	req := &taskv1.ExecCommandRequest{Command: &taskv1.CommandSpec{}}
	var shell, yield, timeout string
	var reuse, restart bool
	limits := &taskv1.CommandLimits{}
	var maxMemory, maxOutput string
	cmd := &cobra.Command{
		Use: "exec AGENT [-- PROGRAM ARG...]", Short: "Run a command for an agent", Args: input.AtLeast("AGENT"),
		Long: `Run a command on a worker and wait for its end for at most --yield. A command that
takes longer continues as a task, whose id is printed. The exit code is 1 if the
command failed. If no connected worker can run it, it is queued; "quartet task get"
says why.`,
		Example: `  quartet task exec keeper -- go test ./...
  quartet task exec keeper --shell "make build | tail" --yield 0
  quartet task exec keeper --input --yield 0 -- psql
  quartet task exec keeper --pool gpu --label cuda=12 --max-memory 8GiB -- ./train
  quartet task exec keeper --restart --yield 0 -- ./index    # again, should its worker be lost`,
	}
	f := cmd.Flags()
	f.StringVar(&shell, "shell", "", "A shell command line instead of a program")
	f.StringVar(&req.Command.Workdir, "workdir", "", "Its working directory (default: the agent's workspace)")
	f.StringToStringVarP(&req.Command.Env, "env", "e", nil, "Environment variables as NAME=VALUE; may be repeated")
	f.BoolVar(&req.Command.Tty, "tty", false, "Run it with a pseudo-terminal")
	f.BoolVar(&req.Command.AcceptsInput, "input", false, "Keep its stdin open for quartet task input")
	f.StringVar(&yield, "yield", "", "Wait this long for its end; 0: do not wait (default 10s)")
	f.StringVar(&timeout, "timeout", "", "End it after this duration (default 1h)")
	f.StringVar(&req.Command.Pool, "pool", "", "Run it on a worker of this pool (default: the pool named default)")
	f.StringToStringVar(&req.Command.WorkerLabels, "label", nil, "A label that its worker must have, such as "+
		"os=linux; may be repeated")
	f.StringVar(&maxMemory, "max-memory", "", "End it when it uses more memory, such as 512MiB, child processes "+
		"included")
	f.StringVar(&maxOutput, "max-output", "", "End it when it writes more output, such as 10MiB")
	f.Int32Var(&limits.Processes, "max-processes", 0, "End it when it has more processes")
	f.BoolVar(&restart, "restart", false, "Run it again if its worker is lost, at most 5 times")
	f.BoolVar(&req.Blocking, "blocking", false, "The work item cannot be completed before it has ended")
	f.StringVar(&req.WorkItemId, "item", "", "The work item that it is for")
	f.BoolVar(&reuse, "reuse", false, "If the same command is running already, use that task")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req.AgentId, req.RequestId = args[0], s.RequestID
		req.Command.Cmd, req.Command.Argv = shell, args[1:]
		if (shell == "") == (len(args) == 1) {
			return exit.UsageError("give either --shell LINE or -- PROGRAM ARG...")
		}
		if reuse {
			req.DuplicatePolicy = taskv1.DuplicatePolicy_DUPLICATE_POLICY_REUSE_RUNNING
		}
		if restart {
			req.Command.RestartPolicy = taskv1.RestartPolicy_RESTART_POLICY_ON_WORKER_LOSS
		}
		var err error
		if limits.MemoryBytes, err = input.Bytes("max-memory", maxMemory); err != nil {
			return err
		}
		if limits.OutputBytes, err = input.Bytes("max-output", maxOutput); err != nil {
			return err
		}
		if maxMemory != "" || maxOutput != "" || limits.Processes != 0 {
			req.Command.Limits = limits
		}
		if req.YieldTime, err = input.Duration("yield", yield); err != nil {
			return err
		}
		if req.Command.Timeout, err = input.Duration("timeout", timeout); err != nil {
			return err
		}
		resp, err := taskv1.NewTaskServiceClient(conn).ExecCommand(cmd.Context(), req)
		if err != nil {
			return err
		}
		if err := s.Show(cmd, resp, func(p *output.Printer) { writeOutcome(cmd, p, resp) }); err != nil {
			return err
		}
		if resp.GetOutcome() == taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED &&
			resp.GetTask().GetState() != taskv1.TaskState_TASK_STATE_COMPLETED {
			return exit.Silently(exit.Failed)
		}
		return nil
	})
	return s.Mutation(cmd)
}

// writeOutcome writes the unchanged output of a command that has ended, or the id of a task
// that still runs, to p, and everything else to stderr.
func writeOutcome(cmd *cobra.Command, p *output.Printer, resp *taskv1.ExecCommandResponse) {
	t := resp.GetTask()
	switch resp.GetOutcome() {
	case taskv1.ExecOutcome_EXEC_OUTCOME_PROMOTED_TO_TASK, taskv1.ExecOutcome_EXEC_OUTCOME_ALREADY_RUNNING:
		p.Printf("%s\n", resp.GetHandle().GetTaskId())
		cmd.PrintErrf("%s: it runs on; see: quartet task output -f %s %s\n", pbjson.EnumText(resp.GetOutcome()),
			t.GetAgentId(), t.GetTaskId())
	case taskv1.ExecOutcome_EXEC_OUTCOME_UNSPECIFIED, taskv1.ExecOutcome_EXEC_OUTCOME_COMPLETED:
		p.Printf("%s", resp.GetOutput())
		if resp.GetOutputTruncated() {
			cmd.PrintErrf("this is the tail; all of it: quartet task output %s %s\n", t.GetAgentId(), t.GetTaskId())
		}
		reportEnd(cmd, t)
	}
}

// reportEnd writes to stderr how a task ended, unless it succeeded.
func reportEnd(cmd *cobra.Command, t *taskv1.Task) {
	if t.GetState() == taskv1.TaskState_TASK_STATE_COMPLETED {
		return
	}
	text := pbjson.EnumText(t.GetState()) + output.Detail(pbjson.EnumText(t.GetEndReason()))
	if t.ExitCode != nil {
		text += ", exit code " + exitCode(t)
	}
	cmd.PrintErrf("%s%s\n", text, output.Detail(terminal.Printable(t.GetEndMessage())))
}

// taskListCommand returns `quartet task list`.
func taskListCommand(s *session.Session) *cobra.Command {
	req := &taskv1.ListTasksRequest{}
	cmd := &cobra.Command{
		Use: "list AGENT", Short: "List an agent's tasks, newest first", Args: input.Exactly("AGENT"),
		Aliases: []string{"ls"},
		Example: "  quartet task list keeper --all",
	}
	cmd.Flags().BoolVar(&req.IncludeTerminal, "all", false, "Include ended ones")
	cmd.Flags().StringVar(&req.WorkItemId, "item", "", "Only tasks for this work item")
	return session.List(s, cmd, taskv1.NewTaskServiceClient, taskv1.TaskServiceClient.ListTasks,
		func(args []string) (*taskv1.ListTasksRequest, error) {
			req.AgentId = args[0]
			return req, nil
		},
		(*taskv1.ListTasksResponse).GetTasks, "no tasks",
		[]string{"TASK", "STATE", "EXIT", "ASKED FOR", "ITEM", "WHAT"},
		func(p *output.Printer, t *taskv1.Task) []string {
			return []string{
				t.GetTaskId(), pbjson.EnumText(t.GetState()), exitCode(t), p.Time(t.GetCreatedAt()),
				t.GetWorkItemId(), output.Flexible(t.GetLabel()),
			}
		}, session.Hidden(&req.IncludeTerminal))
}

// taskGetCommand returns `quartet task get`.
func taskGetCommand(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT TASK", Short: "Show a task", Args: input.Exactly("AGENT", "TASK"),
		Example: "  quartet task get keeper tsk_01h455vb4pex5vsknk084sn02q",
		RunE: session.Call(s, taskv1.NewTaskServiceClient, taskv1.TaskServiceClient.GetTask,
			func(args []string) (*taskv1.GetTaskRequest, error) {
				return &taskv1.GetTaskRequest{AgentId: args[0], TaskId: args[1]}, nil
			},
			func(p *output.Printer, resp *taskv1.GetTaskResponse) { writeTask(p, resp.GetTask()) }),
	}
}

// writeTask writes all fields of a task.
func writeTask(p *output.Printer, t *taskv1.Task) {
	p.Fields(
		"task", t.GetTaskId(),
		"state", pbjson.EnumText(t.GetState())+output.Detail(pbjson.EnumText(t.GetEndReason())),
		"exit code", exitCode(t),
		"what", terminal.Printable(t.GetLabel()),
		"item", t.GetWorkItemId(),
		"worker", terminal.Printable(t.GetWorkerId()),
		"waits for", terminal.Printable(t.GetQueueMessage()),
		"pool", t.GetCommand().GetPool(),
		"labels", terminal.Printable(labelList(t.GetCommand().GetWorkerLabels())),
		"restarts", output.Number(t.GetRestarts()),
		"output", terminal.Count(t.GetOutputBytes(), "byte", "bytes"),
		"takes input", output.Yes(t.GetAcceptsInputNow()),
		"asked for", p.Time(t.GetCreatedAt()),
		"started", p.Time(t.GetStartedAt()),
		"ended", p.Time(t.GetEndedAt()),
		"message", terminal.Printable(t.GetEndMessage()),
	)
}

// labelList returns labels as name=value, ordered by name and separated by commas.
func labelList(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, ",")
}

// exitCode returns the exit code of a task; "" while it has none.
func exitCode(t *taskv1.Task) string {
	if t.ExitCode == nil {
		return ""
	}
	return strconv.Itoa(int(t.GetExitCode()))
}

// taskOutputCommand returns `quartet task output`.
func taskOutputCommand(s *session.Session) *cobra.Command {
	var follow bool
	var offset int64
	cmd := &cobra.Command{
		Use: "output AGENT TASK", Short: "Print the output of a task", Args: input.Exactly("AGENT", "TASK"),
		Long: `Print the output of a task unchanged. With -f, follow it until the task ends; the
task's stderr is then printed on stderr.`,
		Example: "  quartet task output keeper tsk_…\n  quartet task output -f keeper tsk_…\n  quartet task output " +
			"keeper tsk_… --offset -2000",
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Follow the output until the task ends")
	cmd.Flags().Int64Var(&offset, "offset", 0, "Start at this byte; negative: that many bytes before the end")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		client := taskv1.NewTaskServiceClient(conn)
		if follow {
			return followOutput(s, cmd, client, &taskv1.FollowTaskOutputRequest{
				AgentId: args[0], TaskId: args[1],
				Offset: offset,
			})
		}
		req := &taskv1.GetTaskOutputRequest{AgentId: args[0], TaskId: args[1], Offset: offset, MaxBytes: 1_000_000}
		for {
			resp, err := client.GetTaskOutput(cmd.Context(), req)
			if err != nil {
				return err
			}
			if s.JSON() {
				return s.Show(cmd, resp, nil) // JSON output is one document, so only the first part
			}
			if resp.GetTruncated() && req.GetOffset() == offset {
				cmd.PrintErrf("what came before byte %d was dropped\n", resp.GetOffset())
			}
			if _, err := io.WriteString(cmd.OutOrStdout(), resp.GetText()); err != nil {
				return err
			}
			if resp.GetNextOffset() >= resp.GetTotalBytes() || resp.GetNextOffset() <= req.GetOffset() {
				return nil
			}
			req.Offset = resp.GetNextOffset()
		}
	})
	return cmd
}

// followOutput copies the output of a task until the task ends: its stdout to stdout
// and its stderr to stderr. With -o json it prints each response as a line on stdout instead.
// If the task does not end as completed, followOutput reports how it ended and returns an
// error that exits with code 1.
func followOutput(s *session.Session, cmd *cobra.Command, client taskv1.TaskServiceClient,
	req *taskv1.FollowTaskOutputRequest,
) error {
	stream, err := client.FollowTaskOutput(cmd.Context(), req)
	if err != nil {
		return err
	}
	p := output.New(cmd.OutOrStdout())
	return session.Receive(stream, func(resp *taskv1.FollowTaskOutputResponse) error {
		if s.JSON() {
			p.JSONLine(resp)
		} else if chunk := resp.GetChunk(); chunk != nil {
			to := cmd.OutOrStdout()
			if chunk.GetStream() == taskv1.OutputStream_OUTPUT_STREAM_STDERR {
				to = cmd.ErrOrStderr()
			}
			if _, err := to.Write(chunk.GetData()); err != nil {
				return err
			}
		}
		if p.Err() != nil {
			return p.Err()
		}
		if t := resp.GetEnded(); t != nil && t.GetState() != taskv1.TaskState_TASK_STATE_COMPLETED {
			reportEnd(cmd, t)
			return exit.Silently(exit.Failed)
		}
		return nil
	})
}

// taskInputCommand returns `quartet task input`.
func taskInputCommand(s *session.Session) *cobra.Command {
	var eof bool
	var waitID string
	cmd := &cobra.Command{
		Use: "input AGENT TASK TEXT", Short: "Write to the stdin of a running task, or to a child",
		Args: input.Exactly("AGENT", "TASK", "TEXT"),
		Example: `  quartet task input keeper tsk_… "yes"$'\n'
  quartet task input keeper tsk_… "" --eof
  quartet task input keeper tsk_… @query.sql
  quartet task input keeper tsk_… red --wait wt_…`,
	}
	cmd.Flags().BoolVar(&eof, "eof", false, "Close its stdin after the text")
	cmd.Flags().StringVar(&waitID, "wait", "", "Of a child that asks several things: the question that the text "+
		"answers (wt_…)")
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		text, err := input.Text(cmd, args[2])
		if err != nil {
			return err
		}
		resp, err := taskv1.NewTaskServiceClient(conn).SendTaskInput(cmd.Context(), &taskv1.SendTaskInputRequest{
			AgentId: args[0], TaskId: args[1], Text: text, EndOfInput: eof, WaitId: waitID, RequestId: s.RequestID,
		})
		if err != nil {
			return err
		}
		if err := s.Show(cmd, resp, func(p *output.Printer) {
			if resp.GetAcceptedInput() {
				p.Printf("%s to %s\n", terminal.Count(resp.GetBytesWritten(), "byte", "bytes"), resp.GetInputTarget())
			} else {
				cmd.PrintErrf("quartet: not taken: %s\n", resp.GetReason())
			}
		}); err != nil || resp.GetAcceptedInput() {
			return err
		}
		return exit.Silently(exit.Conflict)
	})
	return s.Mutation(cmd)
}

// taskStopCommand returns `quartet task stop`.
func taskStopCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "stop AGENT TASK", Short: "Stop a task; a second time kills it", Args: input.Exactly("AGENT", "TASK"),
		Example: "  quartet task stop keeper tsk_01h455vb4pex5vsknk084sn02q",
	}
	cmd.RunE = session.Call(s, taskv1.NewTaskServiceClient, taskv1.TaskServiceClient.StopTask,
		func(args []string) (*taskv1.StopTaskRequest, error) {
			return &taskv1.StopTaskRequest{AgentId: args[0], TaskId: args[1], RequestId: s.RequestID}, nil
		},
		func(p *output.Printer, resp *taskv1.StopTaskResponse) {
			p.Printf("%s %s\n", resp.GetTask().GetTaskId(), pbjson.EnumText(resp.GetTask().GetState()))
		})
	return s.Mutation(cmd)
}
