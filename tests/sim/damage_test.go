package sim

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/journaltest"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	taskv1 "quartet/pkg/pb/quartet/task/v1"
	waitingv1 "quartet/pkg/pb/quartet/waiting/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/plane/planetest"
	"quartet/pkg/rpc"
)

// damage changes the journal of a plane while nothing runs. The plane must then name the damage in place of showing
// anything (SPEC R10.1), unless a snapshot has what the damaged frames said (R11.3).
func (r *run) damage() error {
	plane := r.w.planes[r.rnd.IntN(len(r.w.planes))]
	frames := r.w.frames(plane)
	if len(frames) < 4 || r.w.history() > 0 {
		return nil // the log alone does not lead to the state
	}
	announced := -1 // the last frame that announces a snapshot
	for i, f := range frames {
		if bytes.Contains(f.Body, []byte(`"event_type":"snapshot_taken"`)) {
			announced = i
		}
	}
	what := r.spoil(frames)
	r.q.Note("damage %s: %s", plane, what.how)
	r.w.kill(r.w.names)
	spoiled := journaltest.NewMemLog()
	for _, f := range what.frames {
		spoiled.Add(f)
	}
	r.w.logs[plane], r.w.archives[plane] = spoiled, &journaltest.MemArchive{}
	r.w.mu.Lock()
	r.w.spoiled = true
	r.w.mu.Unlock()
	r.w.books.stop()
	for _, name := range r.w.names {
		r.w.start(name)
	}
	for !r.w.up() {
		if _, err := r.step(time.Minute); err != nil {
			return err
		}
	}
	c := newClient(r.w, r.k, "witness", r.rep.seed)
	done := make(chan struct{})
	var err error
	r.all.Go(func() {
		defer close(done)
		err = c.readOf(plane)
	})
	if stepErr := r.until("a read of a damaged journal", done, nil); stepErr != nil {
		return stepErr
	}
	if err == nil && what.at < announced {
		return nil
	}
	if about := fault.From(err).Metadata(); err == nil || about["damaged"] == "" && about["wal_name"] == "" {
		return violated{"damage", fmt.Errorf("%s: %s, and a read is answered with: %w", plane, what.how, err)}
	}
	return nil
}

// spoiled is a journal that was damaged.
type spoiled struct {
	how    string
	at     int // the first frame that is damaged
	frames []framelog.Frame
}

// spoil damages frames in a way that the seed chooses.
func (r *run) spoil(frames []framelog.Frame) spoiled {
	at := r.rnd.IntN(len(frames) - 1)
	kind := r.rnd.IntN(4)
	for len(frames[at].Body) == 0 {
		at = (at + 1) % (len(frames) - 1)
	}
	switch kind {
	case 0:
		f := frames[at]
		f.Body = slices.Clone(f.Body)
		f.Body[r.rnd.IntN(len(f.Body))] ^= 1
		frames[at] = f
		return spoiled{fmt.Sprintf("a bit of frame %d of %d was changed", at, len(frames)), at, frames}
	case 1:
		return spoiled{fmt.Sprintf("frame %d of %d is missing", at, len(frames)), at, slices.Delete(frames, at, at+1)}
	case 2:
		n := 1 + r.rnd.IntN(min(5, len(frames)-1))
		return spoiled{
			fmt.Sprintf("the last %d of %d frames are missing", n, len(frames)), len(frames),
			frames[:len(frames)-n],
		}
	}
	frames[at], frames[at+1] = frames[at+1], frames[at]
	return spoiled{fmt.Sprintf("frames %d and %d of %d are in the wrong order", at, at+1, len(frames)), at, frames}
}

// readOf reads something of a plane.
func (c *client) readOf(plane string) (err error) {
	ctx := planetest.As(c.w.ctx, rpc.RoleOperator)
	switch plane {
	case "agent":
		_, err = c.agents.GetAgent(ctx, &agentv1.GetAgentRequest{AgentId: agents[0]})
	case "work":
		_, err = c.work.ListWorkItems(ctx, &workv1.ListWorkItemsRequest{AgentId: agents[0]})
	case "waiting":
		_, err = c.waiting.ListWaits(ctx, &waitingv1.ListWaitsRequest{AgentId: agents[0]})
	case "board":
		err = c.readBoards(ctx)
	case "task":
		_, err = taskv1.NewTaskServiceClient(c.w.conn(nil, c.name, "task")).
			ListTasks(ctx, &taskv1.ListTasksRequest{AgentId: agents[0]})
	}
	return err
}

// readBoards reads all boards: a damaged line of a board's WAL makes that board unusable, and no other.
func (c *client) readBoards(ctx context.Context) error {
	boards := boardv1.NewBoardServiceClient(c.w.conn(nil, c.name, "board"))
	for _, session := range agents {
		list, err := boards.ListBoards(ctx, &boardv1.ListBoardsRequest{SessionId: session, IncludeTerminal: true})
		if err != nil {
			return err
		}
		for _, b := range list.GetBoards() {
			if _, err := boards.GetBoard(ctx, &boardv1.GetBoardRequest{
				SessionId: session,
				BoardId:   b.GetBoardId(),
			}); err != nil {
				return err
			}
		}
	}
	return nil
}
