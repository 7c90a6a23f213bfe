//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
	"quartet/services/storage/datadir"
	"quartet/tests/load"
	"quartet/tests/proc"
)

// journals are the planes that have one.
var journals = []string{"agent", "work", "task", "waiting", "board", "identity", "audit"}

// harm is what is done to the files of a server while it does not run. older is an earlier copy of its store.
type harm struct {
	name string
	// end is how the server ended before: the one after which Raft restores less.
	end string
	do  func(t *testing.T, s *Server, older string)
}

// harms are done to one server, whose replicas of the journals they damage.
var harms = []harm{
	{"removed", "killed", replicas(func(t *testing.T, stream, _ string) { require.NoError(t, os.RemoveAll(stream)) })},
	{"rolled back", "stopped", replicas(func(t *testing.T, stream, older string) {
		require.NoError(t, os.RemoveAll(stream))
		if _, err := os.Stat(older); errors.Is(err, fs.ErrNotExist) {
			return // the copy was made before the stream was
		}
		require.NoError(t, os.CopyFS(stream, os.DirFS(older)))
	})},
	{"cut", "stopped", replicas(func(t *testing.T, stream, _ string) {
		path, b := block(t, stream)
		require.NoError(t, os.Truncate(path, int64(len(b)*2/3)))
	})},
	{"a bit at the beginning", "stopped", replicas(func(t *testing.T, stream, _ string) { flip(t, stream, 0.2) })},
	{"a bit at the end", "stopped", replicas(func(t *testing.T, stream, _ string) { flip(t, stream, 0.97) })},
}

// raftHarms are done to what Raft has of the journals, with -chaos.
var raftHarms = []harm{
	{"a bit of each Raft log", "killed", func(t *testing.T, s *Server, _ string) {
		groups := must.Value(filepath.Glob(filepath.Join(s.Dir, "jetstream", "$SYS", "_js_", "*")))(t)
		require.Greater(t, len(groups), len(journals), "the streams and the meta group")
		for _, group := range groups {
			if files, err := filepath.Glob(filepath.Join(group, "msgs", "*.blk")); err == nil && len(files) > 0 {
				flip(t, group, 0.5)
			}
		}
	}},
	{"the Raft logs removed", "killed", func(t *testing.T, s *Server, _ string) {
		require.NoError(t, os.RemoveAll(filepath.Join(s.Dir, "jetstream", "$SYS", "_js_")))
	}},
	{"the meta group removed", "stopped", func(t *testing.T, s *Server, _ string) {
		require.NoError(t, os.RemoveAll(filepath.Join(s.Dir, "jetstream", "$SYS", "_js_", "_meta_")))
	}},
}

// replicas does something to the replica of each journal.
func replicas(do func(t *testing.T, stream, older string)) func(*testing.T, *Server, string) {
	return func(t *testing.T, s *Server, older string) {
		for _, plane := range journals {
			for _, dir := range s.streamDirs(t, plane) {
				do(t, dir, filepath.Join(older, strings.TrimPrefix(dir, s.Dir)))
			}
		}
	}
}

// startTerm is how long a NATS server may take to start, which otherwise takes a second.
const startTerm = time.Minute

// starts starts a NATS server whose files were damaged. It returns false if the server does not listen after startTerm:
// over some damage it does not end to restore a stream.
func starts(ctx context.Context, s *Server) bool {
	ctx, cancel := context.WithTimeout(ctx, startTerm)
	defer cancel()
	return s.Start(ctx) == nil
}

// block returns the newest file of a journal with its content.
func block(t *testing.T, stream string) (string, []byte) {
	files := must.Value(filepath.Glob(filepath.Join(stream, "msgs", "*.blk")))(t)
	require.NotEmpty(t, files, stream)
	path := slices.Max(files)
	return path, must.Value(os.ReadFile(path))(t)
}

func flip(t *testing.T, stream string, at float64) {
	path, b := block(t, stream)
	if len(b) == 0 {
		return
	}
	b[int(at*float64(len(b)))] ^= 8
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// verified is what quartet verify says of a replica.
type verified struct {
	Partition, Server, End string
	Damage                 []string
}

// verifiedStream is what quartet verify says of a replica of a stream that is not a journal.
type verifiedStream struct {
	Name, Server string
	Messages     uint64
	Damage       []string
}

// verify runs quartet verify over the cluster.
func (c *Cluster) verify(ctx context.Context) ([]verified, error) {
	found, _, err := c.verifyAll(ctx)
	return found, err
}

// verifyAll is verify, which also returns the streams that are not journals.
func (c *Cluster) verifyAll(ctx context.Context) ([]verified, []verifiedStream, error) {
	binary, args := c.Network.Command(c.Instances[0].Host, c.cfg.Quartet, append([]string{
		"verify", "--nats-url", c.natsURL(), "--data-dir", filepath.Join(c.cfg.Dir, "nowhere"), "-o", "json",
	}, c.archive()...)...)
	out, err := exec.CommandContext(ctx, binary, args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) && failed.ExitCode() == 1 && len(out) > 0 {
		err = nil
	}
	if err != nil {
		if failed != nil {
			out = append(out, failed.Stderr...)
		}
		return nil, nil, fmt.Errorf("quartet verify: %w: %s", err, out)
	}
	var found struct {
		Journals []verified
		Streams  []verifiedStream
	}
	err = json.Unmarshal(out, &found)
	return found.Journals, found.Streams, err
}

// names reports whether the readiness of a process says a text.
func (c *Cluster) names(t *testing.T, ctx context.Context, text string) bool {
	for _, in := range c.Instances {
		req := must.Value(http.NewRequestWithContext(ctx, http.MethodGet,
			"http://"+net.JoinHostPort(in.Addr, strconv.Itoa(httpPort))+"/readyz", nil))(t)
		resp := must.Value(http.DefaultClient.Do(req))(t)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, errors.Join(err, resp.Body.Close()))
		if strings.Contains(string(body), text) {
			return true
		}
	}
	return false
}

// streamDirs returns the directories of the replicas of a journal's segments.
func (s *Server) streamDirs(t *testing.T, plane string) (all []string) {
	segments := must.Value(datadir.Segments(s.Dir, "$G", plane))(t)
	require.NotEmpty(t, segments)
	for _, seg := range segments {
		all = append(all, seg.Dir)
	}
	return all
}

// TestR10_DamagedReplicas removes, rolls back, cuts and changes all replicas of journals that are on one server, and
// with -chaos what Raft has of them, in files of one that was killed or stopped. Callers lose nothing. What Raft
// restores is no damage; what it leaves is named by quartet verify with the server, and gone once the server has copied
// its store anew. With -chaos each is done after both ends.
func TestR10_DamagedReplicas(t *testing.T) {
	proc.Long(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	c := start(t, ctx, Config{})
	conn := must.Value(c.Dial(c.Instances...))(t)
	defer func() { _ = conn.Close() }()
	w, err := load.NewWorkload(ctx, conn, rand.New(rand.NewPCG(1, 1)), 4, func(i int) bool { return i%2 == 0 })
	require.NoError(t, err)
	w.Pace(100 * time.Millisecond) // what is written is read by each verify, and has to fit into the store
	stop := w.Start()
	require.NoError(t, c.Settled(ctx))
	older := t.TempDir()
	require.NoError(t, os.CopyFS(older, os.DirFS(c.NATS[0].Dir)))
	<-time.After(2 * time.Second)
	all := harms
	if *chaos > 0 {
		all = append(slices.Clone(harms), raftHarms...)
	}
	for _, h := range all {
		ends := []string{h.end}
		if *chaos > 0 {
			ends = []string{"killed", "stopped"}
		}
		for _, end := range ends {
			s := c.NATS[0]
			if end == "killed" {
				require.NoError(t, s.Kill())
			} else {
				require.NoError(t, s.Interrupt(ctx))
			}
			h.do(t, s, older)
			if !starts(ctx, s) { // the documented way for this too
				t.Logf("%s, %s: the NATS server did not start; its store is removed", h.name, end)
				_ = s.Kill() // it may have ended
				require.NoError(t, os.RemoveAll(filepath.Join(s.Dir, "jetstream")))
				require.NoError(t, s.Start(ctx))
			}
			require.NoError(t, c.Settled(ctx), "%s, %s", h.name, end)
			before := w.Answered()
			require.Eventually(t, func() bool { return w.Answered() > before+100 || w.Err() != nil }, time.Minute,
				50*time.Millisecond)
			require.NoError(t, w.Err(), "%s, %s", h.name, end)
			found := must.Value(c.verify(ctx))(t)
			damaged := map[string]int{}
			for _, v := range found {
				if len(v.Damage) > 0 {
					require.Equal(t, s.Host, v.Server, v)
					damaged[v.Partition]++
				}
			}
			t.Logf("%s, %s: of %d replicas verify names %d, all on %s; callers were answered", h.name, end, len(found),
				len(damaged), s.Host)
			if len(damaged) == 0 {
				continue
			}
			// Who reads from the beginning is placed at the damaged replica now and then, and gets all events
			// nevertheless.
			seen := 0
			require.Eventually(t, func() bool {
				fresh := load.NewWatcher(conn)
				require.NoError(t, fresh.CatchUp(ctx))
				require.GreaterOrEqual(t, len(fresh.Seen), seen, "%s, %s: events are missing", h.name, end)
				seen = len(fresh.Seen)
				return c.names(t, ctx, "the replica on the NATS server "+s.Host+" is damaged")
			}, 2*time.Minute, 10*time.Millisecond, "%s, %s: no process names the replica", h.name, end)
			// The documented way. The Raft log in the store may say of a damaged journal that it begins later.
			require.NoError(t, s.Interrupt(ctx))
			require.NoError(t, os.RemoveAll(filepath.Join(s.Dir, "jetstream")))
			require.NoError(t, s.Start(ctx))
			require.NoError(t, c.Settled(ctx))
			found = must.Value(c.verify(ctx))(t)
			for _, v := range found {
				require.Empty(t, v.Damage, v)
			}
		}
	}
	stop()
	require.NoError(t, w.Audit(ctx))
}
