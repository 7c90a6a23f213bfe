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
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/natsd"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

// The names of the figures.
const (
	nameFsync    = "write 4 KiB + fsync"
	nameEcho     = "bare gRPC echo of UpdateWorkItem"
	nameMessages = "one JetStream message per mutation"
	nameCreate   = "Quartet CreateWorkItem"
	nameUpdate   = "Quartet UpdateWorkItem"
)

// fsyncFigure returns the figure of writes to one file, each of them synced, and a function that closes the file.
func fsyncFigure(o options) (figure, func(), error) {
	f, err := os.Create(filepath.Join(o.dir, "fsync"))
	if err != nil {
		return figure{}, nil, err
	}
	block := make([]byte, 4096)
	return figure{name: nameFsync, op: func(context.Context, int, int) error {
		if _, err := f.Write(block); err != nil {
			return err
		}
		return f.Sync()
	}}, func() { _ = f.Close() }, nil
}

// echo answers immediately with a message of the size of the real response.
type echo struct {
	workv1.UnimplementedWorkServiceServer
}

func (echo) UpdateWorkItem(_ context.Context, r *workv1.UpdateWorkItemRequest) (*workv1.UpdateWorkItemResponse, error) {
	now := timestamppb.Now()
	return &workv1.UpdateWorkItemResponse{WorkItem: &workv1.WorkItem{
		WorkItemId: r.GetWorkItemId(), AgentId: r.GetAgentId(), Objective: r.GetObjective(), Revision: 1,
		CreatedAt: now, UpdatedAt: now,
		PlanArtifact: &workv1.PlanArtifact{
			Path: strings.Repeat("p", 80), Sha256: strings.Repeat("0", 64),
			UpdatedAt: now,
		},
		ReasonCode: "runnable",
	}}, nil
}

// echoFigure returns the figure of gRPC calls whose handler only returns a response, and a function that ends it.
func echoFigure(ctx context.Context) (figure, func(), error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return figure{}, nil, err
	}
	srv := grpc.NewServer()
	workv1.RegisterWorkServiceServer(srv, echo{})
	go func() { _ = srv.Serve(lis) }()
	conn, err := dial(lis.Addr().String())
	if err != nil {
		srv.Stop()
		return figure{}, nil, err
	}
	c := workv1.NewWorkServiceClient(conn)
	return figure{name: nameEcho, note: "no journal, no fsync", op: func(ctx context.Context, caller, i int) error {
		_, err := c.UpdateWorkItem(ctx, update("agent-1", "wi_00000000000000000000000000", caller, i))
		return err
	}}, func() { _ = conn.Close(); srv.Stop() }, nil
}

func update(agentID, itemID string, caller, i int) *workv1.UpdateWorkItemRequest {
	objective := fmt.Sprintf(
		"Measure how long the %dth update of caller %d takes, with an objective of ordinary length", i, caller)
	return &workv1.UpdateWorkItemRequest{AgentId: agentID, WorkItemId: itemID, Objective: &objective}
}

// messagesFigure returns the figure of the simplest durable design: one JetStream message for each mutation,
// acknowledged when it is on disk. It also returns a function that ends it.
func messagesFigure(ctx context.Context, o options) (figure, func(), error) {
	srv, err := natsd.Start(natsd.Config{StoreDir: filepath.Join(o.dir, "messages"), Port: natsd.InProcess})
	if err != nil {
		return figure{}, nil, err
	}
	nc, err := srv.Connect("bench")
	if err != nil {
		srv.Stop()
		return figure{}, nil, err
	}
	done := func() { nc.Close(); srv.Stop() }
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: "mutations", Subjects: []string{"mutations"},
			Storage: jetstream.FileStorage,
		})
	}
	if err != nil {
		done()
		return figure{}, nil, err
	}
	body := make([]byte, 500)
	return figure{
		name: nameMessages, note: "no gRPC; every message fsynced",
		op: func(ctx context.Context, _, _ int) error {
			_, err := js.Publish(ctx, "mutations", body)
			return err
		},
	}, done, nil
}

func dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}
