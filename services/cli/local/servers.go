package local

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	"quartet/pkg/localtoken"
)

const (
	// answerTerm bounds the question whether a server answers.
	answerTerm = 2 * time.Second
	// maxServers is how many addresses Servers asks.
	maxServers = 64
)

// Answers reports whether a server speaks gRPC at the other end of a connection, ready or not.
func Answers(ctx context.Context, conn grpc.ClientConnInterface) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTerm)
	defer cancel()
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		return true
	}
	switch fault.From(err).Code() {
	case codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted:
		return true
	}
	return false
}

// Servers returns the gRPC addresses at which servers of this user answer on this machine, in order.
func Servers(ctx context.Context) []string {
	at, err := localtoken.Running()
	if err != nil {
		return nil // nothing is known
	}
	at = at[:min(len(at), maxServers)] // an address of REST beside each
	var (
		all sync.WaitGroup
		mu  sync.Mutex
		out []string
	)
	for _, address := range at {
		all.Go(func() {
			conn, err := client.Connect(address)
			if err != nil {
				return
			}
			defer conn.Close()
			if Answers(ctx, conn) {
				mu.Lock()
				defer mu.Unlock()
				out = append(out, address)
			}
		})
	}
	all.Wait()
	slices.Sort(out)
	return out
}
