//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
	"quartet/pkg/journal/jetlog"
	"quartet/pkg/journal/witness"
	"quartet/pkg/must"
	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// TestR10_WitnessesOfALostMachine: the journal of a plane is removed from all NATS servers, together with the data
// directories of the processes that wrote it. Whoever starts next, on any host, says what is missing, refuses what is
// in it, and serves the rest.
func TestR10_WitnessesOfALostMachine(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	c := start(t, ctx, Config{})
	conn := must.Value(c.Dial(c.Instances[0]))(t)
	defer func() { _ = conn.Close() }()
	p := must.Value(StartProbe(ctx, 6, conn))(t)
	<-time.After(2 * witness.Interval)
	must.Value(p.Stop())(t)
	witnessed := map[string]framelog.End{}
	require.Eventually(t, func() bool {
		witnessed = must.Value(witness.ReadBucket(ctx, c.client))(t)
		return witness.BucketPartitions(witnessed, "work") == 6 && witness.BucketPartitions(witnessed, "agent") == 1
	}, time.Minute, 100*time.Millisecond)
	for _, in := range c.Instances {
		require.NoError(t, in.Kill())
		require.NoError(t, os.RemoveAll(filepath.Join(c.cfg.Dir, in.Host, "all", "witness")))
	}
	js := must.Value(jetstream.New(c.client))(t)
	places := must.Value(jetlog.Places(ctx, js, "work"))(t)
	require.GreaterOrEqual(t, len(places), 6)
	for _, p := range places {
		require.NoError(t, js.DeleteStream(ctx, p.Stream()))
	}
	found, streams, err := c.verifyAll(ctx)
	require.NoError(t, err)
	for _, v := range found {
		require.Equal(t, strings.HasPrefix(v.Partition, "work/"), len(v.Damage) > 0, v)
	}
	servers := map[string]int{}
	for _, s := range streams {
		require.Empty(t, s.Damage, s)
		servers[s.Name+" "+s.Server]++
		if s.Name == "EVENTS" {
			require.NotZero(t, s.Messages)
		}
	}
	require.Len(t, servers, 6, "each replica of EVENTS and of the output")
	require.NoError(t, c.Instances[1].Start(ctx))
	var ready struct{ Damaged []string }
	require.Eventually(t, func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Instances[1].Addr+":7480/readyz", nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return json.NewDecoder(resp.Body).Decode(&ready) == nil && len(ready.Damaged) == 6
	}, time.Minute, 200*time.Millisecond)
	for _, text := range ready.Damaged {
		require.Contains(t, text, "the journal of work/")
		require.Contains(t, text, "damaged: wal_seq 1 ")
	}
	other := must.Value(c.Dial(c.Instances[1]))(t)
	defer func() { _ = other.Close() }()
	must.Value(load.Again(ctx, func(ctx context.Context) (*agentv1.SpawnAgentResponse, error) {
		return agentv1.NewAgentServiceClient(other).SpawnAgent(ctx, &agentv1.SpawnAgentRequest{
			AgentId: "another", RequestId: "another", Preset: agentv1.Preset_PRESET_PUBLIC_NAMED,
		})
	}))(t)
}
