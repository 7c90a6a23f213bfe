package journal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal/framelog"
)

type emptyState struct{}

func (emptyState) Apply(*Event) error { return nil }

// gathering returns a partition whose collecting frame has n commands. No goroutine runs its loop.
func gathering(n int) (*Partition[emptyState], *pending[emptyState]) {
	p := &Partition[emptyState]{core: &core[emptyState]{}}
	p.cfg.Now = time.Now
	p.inbox = newInbox[*command[emptyState]](maxQueued)
	f := &pending[emptyState]{cmds: make([]*command[emptyState], n)}
	p.loop.frames = []*pending[emptyState]{f}
	p.loop.results = make(chan framelog.Result, 1)
	return p, f
}

// enqueueChain enqueues a command that, when it is executed, enqueues the next one, n in all.
func enqueueChain(t *testing.T, p *Partition[emptyState], n int) {
	t.Helper()
	c := &command[emptyState]{method: "Read", requestID: "r", done: make(chan struct{})}
	c.decide = func(emptyState, Env) ([]*Event, error) {
		if n > 1 {
			enqueueChain(t, p, n-1)
		}
		return nil, nil
	}
	require.NoError(t, p.enqueue(c))
}

func TestGatherDoesNotDelaySmallFrames(t *testing.T) {
	p, f := gathering(minGather - 1)
	enqueueChain(t, p, 10)
	p.gatherCommands()
	require.Len(t, f.cmds, minGather-1)
}

func TestGatherWaitsWhileTheFrameGrows(t *testing.T) {
	p, f := gathering(minGather)
	enqueueChain(t, p, 10)
	p.gatherCommands()
	require.Len(t, f.cmds, minGather+10)
	p.gatherCommands()
	require.Len(t, f.cmds, minGather+10, "nothing is queued")
}

func TestGatherEndsWhenTheFrameIsLarge(t *testing.T) {
	p, f := gathering(maxGather)
	enqueueChain(t, p, 10)
	p.gatherCommands()
	require.Len(t, f.cmds, maxGather)
}

func TestGatherReturnsDuringAWrite(t *testing.T) {
	p, f := gathering(minGather)
	p.loop.sending = true
	enqueueChain(t, p, 10)
	p.gatherCommands()
	require.Len(t, f.cmds, minGather)

	p, f = gathering(minGather)
	p.loop.results <- framelog.Result{}
	enqueueChain(t, p, 10)
	p.gatherCommands()
	require.Len(t, f.cmds, minGather, "an outcome is handled before more commands run")
}

func TestGatherDoesNotDelayTheSecondFrame(t *testing.T) {
	p, f := gathering(minGather)
	p.loop.frames = append(p.loop.frames, &pending[emptyState]{})
	enqueueChain(t, p, 10)
	p.gatherCommands()
	require.Len(t, f.cmds, minGather)
}
