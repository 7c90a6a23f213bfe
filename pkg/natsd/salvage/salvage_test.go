package salvage_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/must"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
)

const name = "S"

// rig is a store with blocks of messages.
type rig struct {
	t        *testing.T
	cfg      salvage.Config
	sizes    []int // of the records of the last block
	original []byte
}

// newRig writes blocks, each with a number of messages.
func newRig(t *testing.T, known uint64, blocks ...int) *rig {
	dir := t.TempDir()
	r := &rig{t: t, cfg: salvage.Config{
		Store: filepath.Join(dir, "nats"), Account: "$G", Dir: filepath.Join(dir, "salvage"), Now: time.UnixMilli(1e12),
		Logger: zap.NewNop(),
		Streams: []salvage.Stream{
			{Name: name, Subjects: []string{"a."}, Known: known},
			{Name: "none", Subjects: []string{"b."}},
		},
	}}
	require.NoError(t, os.MkdirAll(r.dir(), 0o700))
	seq := uint64(0)
	for i, n := range blocks {
		sum, b := blockfile.NewSum(name, i+1), []byte(nil)
		r.sizes = nil
		for range n {
			seq++
			before := len(b)
			b = sum.Append(b, blockfile.Record{
				Seq: seq, At: int64(seq), Subject: "a.0",
				Header: []byte("NATS/1.0\r\n\r\n"), Body: []byte("some body"),
			})
			r.sizes = append(r.sizes, len(b)-before)
		}
		r.original = b
		require.NoError(t, os.WriteFile(r.block(i+1), b, 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(r.dir(), "index.db"), []byte("what the server knew"), 0o600))
	return r
}

func (r *rig) dir() string            { return blockfile.Messages(r.cfg.Store, "$G", name) }
func (r *rig) block(index int) string { return filepath.Join(r.dir(), blockfile.Name(index)) }

// seqs returns the sequences of the messages of a block, and of what is erased.
func (r *rig) seqs(index int) (messages, erased []uint64) {
	b := must.Value(os.ReadFile(r.block(index)))(r.t)
	gaps := must.Value(blockfile.Read(name, index, b, []string{"a."}, func(rec blockfile.Record) error {
		if rec.Erased {
			erased = append(erased, rec.Seq)
		} else {
			messages = append(messages, rec.Seq)
		}
		return nil
	}))(r.t)
	require.Empty(r.t, gaps)
	return messages, erased
}

func (r *rig) check() []salvage.Found {
	r.t.Helper()
	return must.Value(salvage.Check(r.cfg))(r.t)
}

// change writes the last block.
func (r *rig) change(index int, b []byte) {
	require.NoError(r.t, os.WriteFile(r.block(index), b, 0o600))
}

func TestCheckLeavesWhatIsInOrder(t *testing.T) {
	r := newRig(t, 8, 5, 3)
	require.Empty(t, r.check())
	require.FileExists(t, filepath.Join(r.dir(), "index.db"))
	require.NoDirExists(t, r.cfg.Dir)
}

// A record that was being written when the process died is left to the server, unless it is known to have been stored.
func TestCheckOfATornRecord(t *testing.T) {
	r := newRig(t, 7, 5, 3)
	r.change(2, r.original[:len(r.original)-3])
	require.Empty(t, r.check())
	require.Equal(t, r.original[:len(r.original)-3], must.Value(os.ReadFile(r.block(2)))(t))

	r = newRig(t, 8, 5, 3)
	r.change(2, r.original[:len(r.original)-3])
	require.Len(t, r.check(), 1)
	messages, erased := r.seqs(2)
	require.Equal(t, []uint64{6, 7}, messages)
	require.Equal(t, []uint64{8}, erased, "the number is not used again")
}

// Behind damage the server would have lost all; it keeps what is intact, and the copy has what was there.
func TestCheckKeepsWhatIsBehindDamage(t *testing.T) {
	r := newRig(t, 12, 2, 10)
	r.original[r.sizes[0]*3+30] ^= 4
	r.change(2, r.original)
	found := r.check()
	require.Len(t, found, 1)
	require.Equal(t, r.block(2), found[0].Block)
	messages, erased := r.seqs(2)
	require.Equal(t, []uint64{3, 4, 5, 7, 8, 9, 10, 11, 12}, messages)
	require.Empty(t, erased)
	require.NoFileExists(t, filepath.Join(r.dir(), "index.db"))
	copies := must.Value(salvage.Copies(r.cfg.Dir, name))(t)
	require.Equal(t, []blockfile.File{{Index: 2, Path: found[0].Copy}}, copies)
	require.Equal(t, r.original, must.Value(os.ReadFile(found[0].Copy))(t))
	require.Empty(t, r.check(), "once")
}

// A block that ends too early, also between two records, does not let numbers be used twice.
func TestCheckReservesNumbersThatWereUsed(t *testing.T) {
	r := newRig(t, 20, 5, 5)
	require.Empty(t, r.check())
	messages, erased := r.seqs(2)
	require.Equal(t, []uint64{6, 7, 8, 9, 10}, messages)
	require.Equal(t, []uint64{20}, erased)
	require.Empty(t, r.check())
	_, again := r.seqs(2)
	require.Equal(t, erased, again)
}

// Streams are checked at the same time, and what is found in one has nothing of another. One that cannot be read does
// not stop the others.
func TestCheckOfManyStreams(t *testing.T) {
	const streams, blocks, records = 16, 3, 100
	dir := t.TempDir()
	cfg := salvage.Config{
		Store: filepath.Join(dir, "nats"), Account: "$G", Dir: filepath.Join(dir, "salvage"),
		Now: time.UnixMilli(1e12), Logger: zap.NewNop(),
	}
	originals := map[string][]byte{} // by path
	var damaged []string
	for i := range streams {
		s := salvage.Stream{Name: fmt.Sprint("S", i), Subjects: []string{"a."}, Known: blocks * records, Closed: true}
		cfg.Streams = append(cfg.Streams, s)
		msgs := blockfile.Messages(cfg.Store, "$G", s.Name)
		require.NoError(t, os.MkdirAll(msgs, 0o700))
		for k := range blocks {
			sum, b := blockfile.NewSum(s.Name, k+1), []byte(nil)
			for m := range records {
				b = sum.Append(b, blockfile.Record{
					Seq: uint64(k*records + m + 1), Subject: "a.0", Body: make([]byte, 10*i+k),
				})
			}
			path := filepath.Join(msgs, blockfile.Name(k+1))
			if i%3 == 0 && k == 1 {
				b[len(b)/2] ^= 1
				damaged = append(damaged, path)
			}
			originals[path] = b
			require.NoError(t, os.WriteFile(path, b, 0o600))
		}
	}
	unreadable := filepath.Join(blockfile.Messages(cfg.Store, "$G", "S5"), blockfile.Name(2))
	require.NoError(t, os.WriteFile(unreadable, []byte("cmp"), 0o600))
	found, err := salvage.Check(cfg)
	require.ErrorContains(t, err, "stream S5")
	var got []string
	for _, f := range found {
		got = append(got, f.Block)
		require.Equal(t, originals[f.Block], must.Value(os.ReadFile(f.Copy))(t))
		written := must.Value(os.ReadFile(f.Block))(t)
		gaps, err := blockfile.Read(f.Stream, 2, written, []string{"a."}, func(blockfile.Record) error { return nil })
		require.NoError(t, err)
		require.Empty(t, gaps)
		require.Len(t, written, len(originals[f.Block])/records*(records-1))
		delete(originals, f.Block)
	}
	require.Equal(t, damaged, got)
	require.NoError(t, os.WriteFile(unreadable, originals[unreadable], 0o600))
	found = must.Value(salvage.Check(cfg))(t)
	require.Empty(t, found)
	for path, want := range originals {
		require.Equal(t, want, must.Value(os.ReadFile(path))(t))
	}
}

// BenchmarkCheck is how fast the blocks of journals are checked: 512 MiB in records of 1 KiB, in segments of 64 MiB, in
// the system's memory.
func BenchmarkCheck(b *testing.B) {
	const records, blocks, streams = 8192, 8, 8
	dir := b.TempDir()
	cfg := salvage.Config{
		Store: filepath.Join(dir, "nats"), Account: "$G", Dir: filepath.Join(dir, "salvage"), Now: time.UnixMilli(1e12),
		Logger: zap.NewNop(),
	}
	body := make([]byte, 1024-50)
	size := 0
	for s := range streams {
		name := fmt.Sprint("S", s)
		cfg.Streams = append(cfg.Streams, salvage.Stream{Name: name, Subjects: []string{"a."}})
		msgs := blockfile.Messages(cfg.Store, "$G", name)
		require.NoError(b, os.MkdirAll(msgs, 0o700))
		for i := range blocks {
			sum, block := blockfile.NewSum(name, i+1), []byte(nil)
			for k := range records {
				block = sum.Append(block, blockfile.Record{
					Seq: uint64(i*records + k + 1), Subject: "a.0", Header: []byte("NATS/1.0\r\n\r\n"), Body: body,
				})
			}
			size += len(block)
			require.NoError(b, os.WriteFile(filepath.Join(msgs, blockfile.Name(i+1)), block, 0o600))
		}
	}
	b.SetBytes(int64(size))
	for b.Loop() {
		require.Empty(b, must.Value(salvage.Check(cfg))(b))
	}
}
