package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	eventv1 "quartet/pkg/pb/quartet/event/v1"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/terminal"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
	"quartet/services/cli/session"
)

const (
	// exportPage is how many records are read at once.
	exportPage = 500
	// exportPart is how many bytes of a file or of output are read at once.
	exportPart = 1_000_000
)

// exported is the content of export.json: what an export has.
type exported struct {
	Namespace     string    `json:"namespace"`
	ServerVersion string    `json:"serverVersion"`
	BegunAt       time.Time `json:"begunAt"`
	CompletedAt   time.Time `json:"completedAt"`
	Events        int       `json:"events"`
	Cursor        string    `json:"cursor"` // of the last event
	Agents        int       `json:"agents"`
	Files         int       `json:"files"`
	Tasks         int       `json:"tasks"`
	Boards        int       `json:"boards"`
	Keys          int       `json:"keys"`
}

// ExportCommand returns `quartet export`.
func ExportCommand(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "export DIR", Short: "Copy all records of your namespace into files", Args: input.Exactly("DIR"),
		Long: `Copy what a namespace has into the new directory DIR, as JSON lines and plain files:

  events.ndjson              all events of all planes, from the first
  agents.ndjson              its agents, deleted and private ones included
  keys.ndjson, usage.json    its API keys without their secrets, and its quotas
  homes/AGENT/…              the files of the agents' homes
  output/AGENT/TASK.txt      what commands have printed
  boards/AGENT/WAL.wal.jsonl the logs of boards
  export.json                what there is; written last, when the export is complete

It takes the role admin, which exports its own namespace. The server continues to
work meanwhile: events are read last, so what they say is newer than the other files.
"quartet events --cursor" with the cursor of export.json goes on from there. An export
is for reading and for moving elsewhere; "quartet backup" makes what can be restored.`,
		Example: "  quartet export acme-$(date +%F)",
	}
	cmd.RunE = s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		if err := os.Mkdir(args[0], 0o700); err != nil {
			if errors.Is(err, os.ErrExist) {
				return exit.UsageError(args[0] + " exists; name a new directory")
			}
			return err
		}
		root, err := os.OpenRoot(args[0])
		if err != nil {
			return err
		}
		defer root.Close()
		e := &exporter{ctx: cmd.Context(), conn: conn, root: root, progress: newProgress(cmd.ErrOrStderr())}
		err = e.run()
		e.progress.end()
		if err != nil {
			output.New(cmd.ErrOrStderr()).Printf("%s is not complete\n", filepath.Clean(args[0]))
			return err
		}
		if s.JSON() {
			raw, err := json.Marshal(e.found)
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", raw)
			}
			return err
		}
		p := output.New(cmd.OutOrStdout())
		p.Printf("%s: namespace %s with %s, %s, %s, %s, %s, %s\n", filepath.Clean(args[0]), e.found.Namespace,
			terminal.Count(e.found.Events, "event", "events"), terminal.Count(e.found.Agents, "agent", "agents"),
			terminal.Count(e.found.Files, "file", "files"),
			terminal.Count(e.found.Tasks, "task", "tasks"), terminal.Count(e.found.Boards, "board", "boards"),
			terminal.Count(e.found.Keys, "key", "keys"))
		return p.Err()
	})
	return cmd
}

// exporter reads a namespace and writes it below root.
type exporter struct {
	ctx      context.Context //nolint:containedctx // of the command
	conn     *grpc.ClientConn
	root     *os.Root
	progress *progress
	written  int64
	found    exported
}

// run exports everything.
func (e *exporter) run() error {
	identities := identityv1.NewIdentityServiceClient(e.conn)
	who, err := identities.WhoAmI(e.ctx, &identityv1.WhoAmIRequest{})
	if err != nil {
		return err
	}
	e.found.Namespace, e.found.ServerVersion, e.found.BegunAt = who.GetNamespace(), who.GetServerVersion(),
		who.GetServerTime().AsTime()
	usage, err := identities.GetUsage(e.ctx, &identityv1.GetUsageRequest{Namespace: who.GetNamespace()})
	if err != nil {
		return err
	}
	if err := e.file("usage.json", func(w io.Writer) error { return line(w, usage) }); err != nil {
		return err
	}
	if err := e.file("keys.ndjson", func(w io.Writer) error {
		return pages(func(token string) (string, error) {
			resp, err := identities.ListKeys(e.ctx, &identityv1.ListKeysRequest{
				Namespace:    who.GetNamespace(),
				IncludeEnded: true, PageSize: exportPage, PageToken: token,
			})
			e.found.Keys += len(resp.GetKeys())
			return resp.GetNextPageToken(), lines(w, resp.GetKeys(), err)
		})
	}); err != nil {
		return err
	}
	agents, err := e.agents()
	if err != nil {
		return err
	}
	for _, agent := range agents {
		for _, part := range []func(agent string) error{e.home, e.output, e.boards} {
			if err := part(agent); err != nil {
				return fmt.Errorf("agent %s: %w", agent, err)
			}
		}
	}
	if err := e.events(); err != nil {
		return err
	}
	e.found.CompletedAt = time.Now().UTC()
	return e.file("export.json", func(w io.Writer) error {
		raw, err := json.MarshalIndent(e.found, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s\n", raw)
		return err
	})
}

// agents exports all agents, deleted ones too, and returns the ids of those that are not deleted.
func (e *exporter) agents() (ids []string, err error) {
	client := agentv1.NewAgentServiceClient(e.conn)
	err = e.file("agents.ndjson", func(w io.Writer) error {
		return pages(func(token string) (string, error) {
			resp, err := client.ListAgents(e.ctx, &agentv1.ListAgentsRequest{
				IncludePrivate: true, IncludeDeleted: true,
				PageSize: exportPage, PageToken: token,
			})
			for _, a := range resp.GetAgents() {
				e.found.Agents++
				if a.GetLifecycle() != agentv1.Lifecycle_LIFECYCLE_DELETED {
					ids = append(ids, a.GetAgentId())
				}
			}
			return resp.GetNextPageToken(), lines(w, resp.GetAgents(), err)
		})
	})
	return ids, err
}

// home exports the files of an agent's home.
func (e *exporter) home(agent string) error {
	client := workv1.NewHomeServiceClient(e.conn)
	return pages(func(token string) (string, error) {
		resp, err := client.ListFiles(e.ctx, &workv1.ListFilesRequest{
			AgentId: agent, Recursive: true,
			PageSize: exportPage, PageToken: token,
		})
		if err != nil {
			return "", err
		}
		for _, f := range resp.GetFiles() {
			if f.GetDirectory() {
				continue
			}
			e.found.Files++
			err := e.file(path.Join("homes", agent, f.GetPath()), func(w io.Writer) error {
				for at := int64(0); ; {
					part, err := client.ReadFile(e.ctx, &workv1.ReadFileRequest{
						AgentId: agent, Path: f.GetPath(),
						Offset: at, Limit: exportPart,
					})
					if err != nil {
						return err
					}
					if _, err := w.Write(append(part.GetData(), part.GetText()...)); err != nil {
						return err
					}
					if at = part.GetNextOffset(); at == 0 {
						return nil
					}
				}
			})
			if err != nil {
				return "", err
			}
		}
		return resp.GetNextPageToken(), nil
	})
}

// output exports what an agent's commands have printed.
func (e *exporter) output(agent string) error {
	client := taskv1.NewTaskServiceClient(e.conn)
	return pages(func(token string) (string, error) {
		resp, err := client.ListTasks(e.ctx, &taskv1.ListTasksRequest{
			AgentId: agent, IncludeTerminal: true,
			PageSize: exportPage, PageToken: token,
		})
		if err != nil {
			return "", err
		}
		for _, t := range resp.GetTasks() {
			e.found.Tasks++
			err := e.file(path.Join("output", agent, t.GetTaskId()+".txt"), func(w io.Writer) error {
				for at := int64(0); ; {
					part, err := client.GetTaskOutput(e.ctx, &taskv1.GetTaskOutputRequest{
						AgentId: agent, TaskId: t.GetTaskId(), Offset: at, MaxBytes: exportPart,
					})
					if err != nil {
						return err
					}
					if _, err := io.WriteString(w, part.GetText()); err != nil {
						return err
					}
					if part.GetNextOffset() <= at || part.GetNextOffset() >= part.GetTotalBytes() {
						return nil
					}
					at = part.GetNextOffset()
				}
			})
			if err != nil {
				return "", err
			}
		}
		return resp.GetNextPageToken(), nil
	})
}

// boards exports the logs of an agent's boards.
func (e *exporter) boards(agent string) error {
	client := boardv1.NewBoardServiceClient(e.conn)
	return pages(func(token string) (string, error) {
		resp, err := client.ListWals(e.ctx, &boardv1.ListWalsRequest{
			SessionId: agent, PageSize: exportPage,
			PageToken: token,
		})
		if err != nil {
			return "", err
		}
		for _, wal := range resp.GetWals() {
			e.found.Boards++
			err := e.file(path.Join("boards", agent, wal.GetWalName()+".wal.jsonl"), func(w io.Writer) error {
				for after := int64(0); ; {
					part, err := client.ReadWal(e.ctx, &boardv1.ReadWalRequest{
						SessionId: agent, WalName: wal.GetWalName(), AfterWalSeq: after, Limit: 2000,
					})
					if err != nil {
						return err
					}
					if _, err := w.Write(part.GetLines()); err != nil {
						return err
					}
					if !part.GetTruncated() {
						return nil
					}
					after = part.GetLastWalSeq()
				}
			})
			if err != nil {
				return "", err
			}
		}
		return resp.GetNextPageToken(), nil
	})
}

// events exports the events that exist now.
func (e *exporter) events() error {
	return e.file("events.ndjson", func(w io.Writer) error {
		stream, err := eventv1.NewEventServiceClient(e.conn).WatchEvents(e.ctx, &eventv1.WatchEventsRequest{
			FromStart: true, StopAtEnd: true,
		})
		if err != nil {
			return err
		}
		return session.Receive(stream, func(m *eventv1.WatchEventsResponse) error {
			if m.GetEvent() == nil {
				return nil
			}
			e.found.Events++
			e.found.Cursor = m.GetEvent().GetCursor()
			return line(w, m.GetEvent())
		})
	})
}

// file creates a file of the export, and the directories that lead to it, with what write writes.
func (e *exporter) file(name string, write func(w io.Writer) error) error {
	if err := e.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := e.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(counter{f, e})
	return errors.Join(write(buffered), buffered.Flush(), f.Close())
}

// counter shows the progress of what is written through it.
type counter struct {
	io.Writer
	e *exporter
}

// Write implements io.Writer.
func (c counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.e.written += int64(n)
	c.e.progress.show(c.e.written)
	return n, err
}

// pages calls read with the token of each page, "" first, until it returns "" or an error.
func pages(read func(token string) (next string, err error)) error {
	for token := ""; ; {
		next, err := read(token)
		if err != nil || next == "" {
			return err
		}
		token = next
	}
}

// lines writes messages as JSON lines. If err is not nil, it writes nothing and returns err.
func lines[M proto.Message](w io.Writer, all []M, err error) error {
	for _, m := range all {
		if err == nil {
			err = line(w, m)
		}
	}
	return err
}

// line writes a message as a line of JSON.
func line(w io.Writer, m proto.Message) error {
	p := output.New(w)
	p.JSONLine(m)
	return p.Err()
}
