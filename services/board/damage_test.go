package board

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/fault"
	"quartet/pkg/journal"
	"quartet/pkg/journal/framelog"
	"quartet/pkg/must"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
	"quartet/pkg/plane"
	"quartet/services/board/model"
)

// spoiled is a log in which one line reads otherwise than it was written.
type spoiled struct {
	framelog.Log
	line  int
	spoil func([]byte) []byte
}

func (s *spoiled) frame(before int, f framelog.Frame) framelog.Frame {
	lines := framelog.SplitLines(f.Body)
	at := s.line - before
	if at < 0 || at >= len(lines) {
		return f
	}
	lines[at] = s.spoil(bytes.Clone(lines[at]))
	f.Body = append(bytes.Join(lines, []byte("\n")), '\n')
	return f
}

func (s *spoiled) Scan(ctx context.Context, from uint64, fn func(uint64, framelog.Frame) error) error {
	n := 0
	return s.Log.Scan(ctx, 0, func(seq uint64, f framelog.Frame) error {
		g := s.frame(n, f)
		n += len(framelog.SplitLines(f.Body))
		if seq < from {
			return nil
		}
		return fn(seq, g)
	})
}

func (s *spoiled) Get(ctx context.Context, seq uint64) (f framelog.Frame, err error) {
	err = s.Scan(ctx, seq, func(at uint64, g framelog.Frame) error {
		if at == seq {
			f = g
		}
		return nil
	})
	return f, err
}

// TestB2_AnyDamagedRecord damages every record of a journal with three boards, in
// several ways: the board that it was about answers STORAGE and says where, the
// others are what they were, and go on. Where nothing says whose it is, or it is the
// journal's own, all boards of the partition answer so (S2-059).
func TestB2_AnyDamagedRecord(t *testing.T) {
	r := newRig(t)
	names := []string{"one", "two", "three"}
	for _, b := range names {
		r.create(b, in("a"), in("b", "a"), in("c"))
	}
	r.open("two", 2)
	for _, b := range names {
		r.held(b, "a")
		require.NoError(t, r.say(b, "c", model.StepFailed))
	}
	want := map[string]*boardv1.Board{}
	for _, b := range names {
		want[b] = r.get(b)
	}
	r.down()
	log := must.Value(r.journals.Log("board", 0))(t)
	var whose []string
	var first []uint64 // wal_seq of the first line of the frame
	require.NoError(t, log.Scan(t.Context(), 0, func(_ uint64, f framelog.Frame) error {
		for _, line := range framelog.SplitLines(f.Body) {
			raw, err := journal.ParseLine(line)
			if err != nil {
				return err
			}
			whose = append(whose, raw.TaskID)
			first = append(first, f.Link.First)
		}
		return nil
	}))
	require.Greater(t, len(whose), 15)
	harm := map[string]func([]byte) []byte{
		"cut in the payload": func(l []byte) []byte { return l[:bytes.Index(l, []byte(`"payload"`))+12] },
		"no JSON any more":   func(l []byte) []byte { l[bytes.Index(l, []byte(`"payload"`))+10] = 'x'; return l },
		"the beginning gone": func(l []byte) []byte { return append([]byte("\x00\x00"), l[2:]...) },
		"an unknown payload": func(l []byte) []byte {
			return bytes.Replace(l, []byte(`"payload":{`), []byte(`"payload":{"colour":1,`), 1)
		},
		"an unknown type": func(l []byte) []byte {
			return bytes.Replace(l, []byte(`"event_type":"`), []byte(`"event_type":"x_`), 1)
		},
		"nothing to be read":  func(l []byte) []byte { return bytes.Repeat([]byte{0xff}, len(l)) },
		"all of it zero":      func(l []byte) []byte { return make([]byte, len(l)) },
		"an empty object":     func([]byte) []byte { return []byte("{}") },
		"some other document": func([]byte) []byte { return []byte(`[1,2,3]`) },
	}
	for line, board := range whose {
		for how, spoil := range harm {
			t.Run(fmt.Sprintf("line %d %s", line, how), func(t *testing.T) {
				bad := &spoiled{Log: log, line: line, spoil: spoil}
				s := must.Value(New(Config{}, Deps{
					Deps: plane.Deps{
						Log:     func(string, int) (framelog.Log, error) { return bad, nil },
						Sources: r.journals.Sources, Clock: r.clk, IDs: r.ids,
					},
					MintRun: func(_, _, runID string) string { return runID },
				}))(t)
				err := s.Start(within(t))
				t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
				original := ""
				_ = log.Scan(t.Context(), 0, func(_ uint64, f framelog.Frame) error {
					original += string(f.Body)
					return nil
				})
				d := journal.Damage{Line: spoil([]byte(strings.Split(original, "\n")[line]))}
				_, legible := d.Field("task_id")
				require.NoError(t, err)
				if board == "" || !legible {
					for _, name := range names {
						_, err := s.GetBoard(r.owner(), &boardv1.GetBoardRequest{SessionId: owner, BoardId: name})
						require.ErrorIs(t, err, fault.Storage)
						require.ErrorContains(t, err, fmt.Sprintf("wal_seq %d", line+1))
					}
					return
				}
				for _, name := range names {
					got, err := s.GetBoard(r.owner(), &boardv1.GetBoardRequest{SessionId: owner, BoardId: name})
					if name != board {
						require.NoError(t, err)
						require.True(t, proto.Equal(want[name].GetSteps()[2], got.GetBoard().GetSteps()[2]))
						require.Equal(t, want[name].GetRevision(), got.GetBoard().GetRevision())
						continue
					}
					require.ErrorIs(t, err, fault.Storage)
					require.ErrorContains(t, err, fmt.Sprintf("wal_seq %d", first[line]),
						"any line of the frame may have been changed")
					must.Refuse(s.UpdateStep(r.owner(), &boardv1.UpdateStepRequest{
						SessionId: owner, BoardId: name, StepId: "c", Status: boardv1.StepStatus_STEP_STATUS_PENDING,
					}))(t, fault.Storage)
				}
			})
		}
	}
}
