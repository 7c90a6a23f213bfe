package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"quartet/pkg/natsd"
	workv1 "quartet/pkg/pb/quartet/work/v1"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// Names of the figures.
const (
	nameFsync    = "write 4 KiB + fsync"
	nameEcho     = "bare gRPC echo of UpdateWorkItem"
	nameMessages = "one JetStream message per mutation"
	nameCreate   = "Quartet CreateWorkItem"
	nameUpdate   = "Quartet UpdateWorkItem"
)

// measureFsync is what the disk gives one writer.
func measureFsync(ctx context.Context, o options, say func(row)) error {
	if !o.wants(nameFsync) {
		return nil
	}
	f, err := os.Create(filepath.Join(o.dir, "fsync"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	block := make([]byte, 4096)
	s, err := load(ctx, 1, o.span, func(context.Context, int, int) error {
		if _, err := f.Write(block); err != nil {
			return err
		}
		return f.Sync()
	})
	say(row{name: nameFsync, callers: 1, stats: s})
	return err
}

// echo answers at once with a message of the size that the real one has.
type echo struct {
	workv1.UnimplementedWorkServiceServer
}

func (echo) UpdateWorkItem(_ context.Context, r *workv1.UpdateWorkItemRequest) (*workv1.UpdateWorkItemResponse, error) {
	now := timestamppb.Now()
	return &workv1.UpdateWorkItemResponse{WorkItem: &workv1.WorkItem{
		WorkItemId: r.GetWorkItemId(), AgentId: r.GetAgentId(), Objective: r.GetObjective(), Revision: 1, CreatedAt: now, UpdatedAt: now,
		PlanArtifact: &workv1.PlanArtifact{Path: strings.Repeat("p", 80), Sha256: strings.Repeat("0", 64), UpdatedAt: now},
		ReasonCode:   "runnable",
	}}, nil
}

// measureEcho is what gRPC gives with nothing behind it.
func measureEcho(ctx context.Context, o options, say func(row)) error {
	if !o.wants(nameEcho) {
		return nil
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	workv1.RegisterWorkServiceServer(srv, echo{})
	go func() { _ = srv.Serve(lis) }()
	defer srv.Stop()
	conn, err := dial(lis.Addr().String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	c := workv1.NewWorkServiceClient(conn)
	for _, n := range o.callers {
		s, err := load(ctx, n, o.span, func(ctx context.Context, caller, i int) error {
			_, err := c.UpdateWorkItem(ctx, update("agent-1", "wi_00000000000000000000000000", caller, i))
			return err
		})
		if err != nil {
			return err
		}
		say(row{name: nameEcho, callers: n, stats: s, note: "no journal, no fsync"})
	}
	return nil
}

func update(agentID, itemID string, caller, i int) *workv1.UpdateWorkItemRequest {
	objective := fmt.Sprintf("Measure how long the %dth update of caller %d takes, with an objective of ordinary length", i, caller)
	return &workv1.UpdateWorkItemRequest{AgentId: agentID, WorkItemId: itemID, Objective: &objective}
}

// measureMessages is the obvious design: each mutation a message of its own,
// acknowledged when it is on disk.
func measureMessages(ctx context.Context, o options, say func(row)) error {
	if !o.wants(nameMessages) {
		return nil
	}
	srv, err := natsd.Start(natsd.Config{StoreDir: filepath.Join(o.dir, "messages"), Port: natsd.InProcess})
	if err != nil {
		return err
	}
	defer srv.Stop()
	nc, err := srv.Connect("bench")
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "mutations", Subjects: []string{"mutations"}, Storage: jetstream.FileStorage}); err != nil {
		return err
	}
	body := make([]byte, 500)
	for _, n := range o.callers {
		s, err := load(ctx, n, o.span, func(ctx context.Context, _, _ int) error {
			_, err := js.Publish(ctx, "mutations", body)
			return err
		})
		if err != nil {
			return err
		}
		say(row{name: nameMessages, callers: n, stats: s, note: "no gRPC; every message fsynced"})
	}
	return nil
}

func dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}
