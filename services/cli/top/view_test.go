package top

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agentv1 "quartet/pkg/pb/quartet/agent/v1"
	fleetv1 "quartet/pkg/pb/quartet/fleet/v1"
	"quartet/services/cli/output"
)

// sample returns a view of n agents, of which the first runs a turn and the last waits for an operator.
func sample(n int) *view {
	v := &view{address: "127.0.0.1:7481", loaded: true, utc: true, now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	for i := range n {
		a := &agentv1.Agent{
			AgentId: fmt.Sprintf("agent-%04d", i), Posture: agentv1.Posture_POSTURE_IDLE,
			Control: agentv1.Control_CONTROL_RUNNING, Lane: &agentv1.Lane{}, PostureReason: "nothing\x1b[2Jto do",
		}
		switch i {
		case n - 1:
			a.Posture = agentv1.Posture_POSTURE_WAITING_OPERATOR
			a.Lane.Queued = 3
		case 0:
			a.Posture = agentv1.Posture_POSTURE_RUNNING_TURN
		}
		v.fleet.agents = append(v.fleet.agents, a)
	}
	return v
}

// picture returns the lines without colours.
func picture(v *view, columns, rows int) []string {
	out := v.lines(columns, rows)
	for i := range out {
		out[i] = uncoloured(out[i])
	}
	return out
}

func TestThePictureFitsTheScreen(t *testing.T) {
	for _, n := range []int{0, 1, 3, 500} {
		for _, size := range [][2]int{{80, 24}, {200, 60}, {40, 10}, {20, 3}, {10, 1}, {1, 1}} {
			v := sample(n)
			for range 5 {
				lines := v.lines(size[0], size[1])
				require.LessOrEqual(t, len(lines), size[1], "%d agents, %v", n, size)
				for _, line := range lines {
					require.LessOrEqual(t, output.Width(uncoloured(cut(line, size[0]))), size[0])
					require.NotContains(t, uncoloured(line), "\x1b", "no foreign sequences")
				}
				v.press(keyPageDown)
			}
		}
	}
}

func TestKeysChooseFilterAndSort(t *testing.T) {
	v := sample(100)
	lines := picture(v, 100, 24)
	require.Contains(t, lines[0], "100 agents  1 running_turn  1 waiting_operator  98 idle  05:06:07Z")
	require.Contains(t, lines[2], "agent-0000", "what acts is first")
	require.Contains(t, lines[3], "agent-0099", "what waits for a person is next")
	v.press(keyEnd)
	lines = picture(v, 100, 24)
	require.Contains(t, lines[21], "agent-0098")
	require.Equal(t, "agent-0098", v.chosen)
	v.press(keyHome)
	v.press('j')
	require.Equal(t, "agent-0099", v.chosen)
	v.press('s')
	require.Equal(t, "agent-0099", v.chosen, "the agent stays chosen when the order changes")
	require.Contains(t, strings.Join(picture(v, 100, 24), "\n"), "agent-0099", "and stays on the screen")
	v.press('s')
	v.press(keyHome)
	require.Equal(t, "agent-0099", v.chosen, "the longest lane is first")

	for _, k := range "/003q" {
		require.Equal(t, nothing, v.press(key(k)), "keys go into the filter")
	}
	v.press(keyBackspace)
	v.press(keyEnter)
	require.Len(t, v.rows(), 11)
	require.Contains(t, strings.Join(picture(v, 100, 24), "\n"), "filter: 003")
	v.press(keyEscape)
	require.Len(t, v.rows(), 100)
	require.Equal(t, quit, v.press('q'))
	require.Equal(t, quit, v.press(keyInterrupt))

	require.Equal(t, load, v.press(keyEnter))
	require.NotEmpty(t, v.inside)
	require.Contains(t, strings.Join(picture(v, 100, 24), "\n"), "reading")
	v.take(reading{inside: "somebody else", detail: &detail{agent: &agentv1.Agent{AgentId: "somebody else"}}})
	require.Nil(t, v.detail, "what was read for another agent is not shown")
	v.take(reading{inside: v.inside, detail: &detail{agent: v.fleet.agents[0]}})
	require.Contains(t, strings.Join(picture(v, 100, 24), "\n"), "running_turn")
	v.press(keyEnd)
	picture(v, 100, 24)
	require.Equal(t, load, v.press(keyEscape))
	require.Empty(t, v.inside)
	v.take(reading{err: errors.New("boom")})
	require.Contains(t, picture(v, 100, 24)[23], "internal error")
}

func TestKeys(t *testing.T) {
	for in, want := range map[string][]key{
		"a": {'a'}, "\x1b[A": {keyUp}, "\x1bOB": {keyDown}, "\x1b[5~\x1b[6~": {keyPageUp, keyPageDown},
		"\x1b": {keyEscape}, "\r": {keyEnter}, "\x7f": {keyBackspace},
		"\x03": {keyInterrupt}, "\x1b[1;5C": nil, "\x1b[200~x": {'x'}, "j\x1b[Ak": {'j', keyUp, 'k'}, "\x1b[": nil,
		"é": nil,
	} {
		require.Equal(t, want, parseKeys([]byte(in)), "%q", in)
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte("\x1b[A\x1bOBq"))
	f.Fuzz(func(t *testing.T, in []byte) {
		v := sample(7)
		for _, k := range parseKeys(in) {
			v.press(k)
			require.LessOrEqual(t, len(v.lines(30, 8)), 8)
		}
	})
}

// Only lines that changed are written, in one piece; another size draws all of them again.
func TestOnlyChangesAreDrawn(t *testing.T) {
	var out bytes.Buffer
	columns, rows := 20, 3
	s := &screen{out: &out, size: func() (int, int) { return columns, rows }}
	draw := func(lines ...string) string {
		out.Reset()
		require.NoError(t, s.draw(func(int, int) []string { return lines }))
		return out.String()
	}
	require.Contains(t, draw("one", "two"), "\x1b[1;1Hone")
	require.Empty(t, draw("one", "two"), "nothing changed, so nothing is written")
	second := draw("one", "TWO")
	require.NotContains(t, second, "one")
	require.Contains(t, second, "\x1b[2;1HTWO")
	require.True(t, strings.HasPrefix(second, beginUpdate) && strings.HasSuffix(second, endUpdate))
	require.NotContains(t, second, "\x1b[2J", "the screen is not cleared")
	require.Contains(t, draw("one"), "\x1b[2;1H"+plain+clearRest, "what is gone is cleared")
	columns = 10
	require.Contains(t, draw("one"), "\x1b[2J")
	require.NotContains(t, draw("0123456789abc"), "a")
	require.NotContains(t, draw("a", "b", "c", "below the screen"), "below")
}

// The terminal is given back as it was.
func TestTheTerminalIsGivenBack(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	_, err = openScreen(r, w)
	require.ErrorContains(t, err, "the terminal", "a pipe is none")
	var out bytes.Buffer
	restored := false
	s := &screen{out: &out, restore: func() error {
		restored = true
		return nil
	}}
	require.NoError(t, s.close())
	require.True(t, restored)
	require.Contains(t, out.String(), "\x1b[?1049l")
	require.Contains(t, out.String(), "\x1b[?25h", "the cursor is back")
	keys := make(chan key)
	go readKeys(io.MultiReader(strings.NewReader("q")), keys, make(chan struct{}))
	require.Equal(t, key('q'), <-keys)
	_, open := <-keys
	require.False(t, open)
}

// Where not all agents are read, the head counts all, and a filter has them read again.
func TestMoreAgentsThanAreRead(t *testing.T) {
	v := sample(3)
	require.Equal(t, nothing, v.press('/'))
	require.Equal(t, nothing, v.press(keyEnter))
	v.fleet.more = true
	v.fleet.counts = &fleetv1.CountAgentsResponse{Agents: 100_000, Incomplete: true, Postures: []*fleetv1.PostureCount{
		{Posture: agentv1.Posture_POSTURE_BLOCKED, Agents: 7},
	}}
	require.Contains(t, uncoloured(v.head()), "3 of 100000 agents so far  7 blocked  05:06:07Z")
	v.press('/')
	require.Equal(t, nothing, v.press('x'))
	require.Equal(t, load, v.press(keyEnter))
}
