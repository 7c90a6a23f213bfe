//go:build linux

package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"quartet/pkg/clock"
	"quartet/pkg/journal/archive"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/storage/archives"
	"quartet/tests/bucket"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// TestR12_ABucketOfACluster: the instances of a cluster archive into one bucket. Its server is killed, and meanwhile an
// instance that has written to it; the other one goes on with the same archive when the bucket is back. Segments leave
// NATS, and the events of all that was answered are read as if they had not.
func TestR12_ABucketOfACluster(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	const addr = here + ":9000"
	location := "s3://" + bucket.Name + "/prod?endpoint=http://" + addr
	credentials := bucket.Credentials(t, bucket.AccessKey, bucket.SecretKey)
	t.Setenv("QUARTET_ARCHIVE", location)
	t.Setenv("QUARTET_ARCHIVE_CREDENTIALS_FILE", credentials)
	at := must.Value(archives.ParseLocation(location))(t)
	b, err := archives.OpenBucket(archives.BucketConfig{
		Location: at, CredentialsFile: credentials, Now: clock.System().Now,
	})
	require.NoError(t, err)

	var s3 *bucket.Server
	c := start(t, ctx, Config{Before: func() { s3 = bucket.StartAt(t, addr) }})
	conn := must.Value(c.Dial(c.Instances...))(t)
	defer func() { _ = conn.Close() }()
	w, err := load.NewWorkload(ctx, conn, rand.New(rand.NewPCG(1, 1)), 12, func(i int) bool { return i%2 == 0 })
	require.NoError(t, err)
	stop := w.Start()
	write := bulk(t, ctx, conn)

	archived := func() (segments int) {
		for n := range 6 {
			segments += len(must.Value(archive.Read(ctx, b.Store("work", n), fmt.Sprint("work/", n)))(t).Segments)
		}
		return segments
	}
	until := func(why string, most time.Duration, ok func() bool) {
		for began := time.Now(); !ok(); {
			require.NoError(t, w.Err())
			require.Less(t, time.Since(began), most, why)
			write()
		}
	}
	until("nothing was archived", 5*time.Minute, func() bool { return archived() >= 2 })

	require.NoError(t, s3.Kill())
	before := w.Answered()
	require.NoError(t, c.Instances[0].Kill())
	until("nothing is answered without the bucket", time.Minute, func() bool { return w.Answered() > before+200 })
	s3.Run(t)
	had := archived()
	until("the instance that is left does not archive", 5*time.Minute, func() bool { return archived() >= had+2 })
	require.NoError(t, c.Instances[0].Start(ctx))
	require.NoError(t, c.Settled(ctx))
	had = archived()
	until("with both instances nothing is archived", 5*time.Minute, func() bool { return archived() >= had+2 })

	js := must.Value(jetstream.New(c.client))(t)
	until("no segment left NATS", time.Minute, func() bool {
		places := must.Value(jetlog.Places(ctx, js, "work"))(t)
		first := 0
		for _, p := range places {
			if p.Segment == 0 {
				first++
			}
		}
		return first < 6
	})
	stop()
	require.NoError(t, w.Audit(ctx))
	journals, streams, err := c.verifyAll(ctx)
	require.NoError(t, err)
	for _, j := range journals {
		require.Empty(t, j.Damage, j)
	}
	for _, s := range streams {
		require.Empty(t, s.Damage, s)
	}
	t.Logf("%d segments of the work plane in the bucket, %d mutations of drivers answered, %d events", archived(),
		w.Answered(), len(w.Watcher.Seen))
}

// bulk returns a function that writes about 100 KB into the journals of the work plane, for agents of its own in all
// partitions, and returns when all was answered.
func bulk(t *testing.T, ctx context.Context, conn grpc.ClientConnInterface) func() {
	agents, work := agentv1.NewAgentServiceClient(conn), workv1.NewWorkServiceClient(conn)
	items := make([]*workv1.WorkItem, 24)
	for i := range items {
		agent := fmt.Sprint("bulk-", i)
		must.Value(load.Again(ctx, func(ctx context.Context) (*agentv1.SpawnAgentResponse, error) {
			return agents.SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
				AgentId: agent, RequestId: agent, Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
			})
		}))(t)
		items[i] = must.Value(load.Again(ctx, func(ctx context.Context) (*workv1.CreateWorkItemResponse, error) {
			return work.CreateWorkItem(ctx, &workv1.CreateWorkItemRequest{
				AgentId: agent, RequestId: agent,
				Objective: "be updated", PlanStatus: workv1.PlanStatus_PLAN_STATUS_NEEDS_INPUT,
			})
		}))(t).GetWorkItem()
	}
	round := 0
	return func() {
		round++
		g, ctx := errgroup.WithContext(ctx)
		for i, it := range items {
			g.Go(func() error {
				request := fmt.Sprint("bulk-", i, "-", round)
				text := request + strings.Repeat(".", 1900)
				return must.Err(load.Again(ctx, func(ctx context.Context) (*workv1.UpdateWorkItemResponse, error) {
					return work.UpdateWorkItem(ctx, &workv1.UpdateWorkItemRequest{
						AgentId:    it.GetAgentId(),
						WorkItemId: it.GetWorkItemId(), RequestId: request, Objective: &text,
					})
				}))
			})
		}
		require.NoError(t, g.Wait())
	}
}
