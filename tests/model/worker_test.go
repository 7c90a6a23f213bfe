package model

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
	"quartet/pkg/rpc"
)

// worker speaks a worker's protocol and runs nothing: the test says when its
// commands end.
type worker struct {
	stream taskv1.WorkerService_ConnectClient
	cancel context.CancelFunc
	heard  chan *taskv1.ConnectResponse
	gone   sync.WaitGroup
	leases map[string]int64 // live commands and their lease's generation
}

// connect joins the task plane, with the commands of a stream that was broken. A
// plane that was started anew may be reached by the connection to the old one,
// which says that it is unavailable: a worker tries again.
func (w *world) connect(before *worker) (k *worker, err error) {
	for began := time.Now(); time.Since(began) < hang; runtime.Gosched() {
		if k, err = w.tryConnect(before); status.Code(err) != codes.Unavailable {
			break
		}
	}
	return k, err
}

func (w *world) tryConnect(before *worker) (*worker, error) {
	ctx, cancel := context.WithCancel(rpc.WithActor(w.Context(), rpc.Actor{
		Namespace: "acme", Principal: "w1",
		Role: rpc.RoleWorker,
	}))
	stream, err := taskv1.NewWorkerServiceClient(w.Conn("task")).Connect(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	k := &worker{
		stream: stream, cancel: cancel, heard: make(chan *taskv1.ConnectResponse, 1024),
		leases: map[string]int64{},
	}
	hello := &taskv1.WorkerHello{WorkerId: "w1", BootId: "b1", Capacity: 10000}
	if before != nil {
		k.leases = before.leases
		for id := range k.leases {
			hello.RunningTaskIds = append(hello.RunningTaskIds, id)
		}
	}
	if err := stream.Send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Hello{Hello: hello}}); err != nil {
		cancel()
		return nil, err
	}
	// The headers are sent once the worker is taken.
	if md, err := stream.Header(); err != nil || md == nil {
		if err == nil {
			_, err = stream.Recv()
		}
		cancel()
		return nil, err
	}
	k.gone.Go(func() {
		defer close(k.heard)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			k.heard <- m
		}
	})
	return k, nil
}

func (k *worker) leave() {
	k.cancel()
	k.gone.Wait()
}

// await hears what the plane says until it is what is waited for.
func (k *worker) await(is func(*taskv1.ConnectResponse) bool) (*taskv1.ConnectResponse, error) {
	watch := time.NewTimer(hang)
	defer watch.Stop()
	for {
		select {
		case m, ok := <-k.heard:
			if !ok {
				return nil, errors.New("the worker's stream ended")
			}
			if is(m) {
				return m, nil
			}
		case <-watch.C:
			return nil, errors.New("the task plane does not say what is waited for")
		}
	}
}

// leased waits until a command was handed over, which is when it runs.
func (k *worker) leased(taskID string) error {
	m, err := k.await(func(m *taskv1.ConnectResponse) bool { return m.GetLease().GetTask().GetTaskId() == taskID })
	k.leases[taskID] = m.GetLease().GetLeaseGeneration()
	return err
}

// end reports the end of a command and waits until that is stored.
func (k *worker) end(taskID string, reason taskv1.TaskEndReason, exit int32) error {
	e := &taskv1.CommandEnded{TaskId: taskID, LeaseGeneration: k.leases[taskID], Reason: reason}
	if reason == taskv1.TaskEndReason_TASK_END_REASON_EXITED {
		e.ExitCode = &exit
	}
	if err := k.stream.Send(&taskv1.ConnectRequest{Message: &taskv1.ConnectRequest_Ended{Ended: e}}); err != nil {
		return err
	}
	delete(k.leases, taskID)
	_, err := k.await(func(m *taskv1.ConnectResponse) bool {
		return m.GetAck().GetTaskId() == taskID && (m.GetAck().GetEnded() || m.GetAck().GetStale())
	})
	return err
}
