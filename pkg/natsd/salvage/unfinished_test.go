package salvage_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"quartet/pkg/must"
	"quartet/pkg/natsd"
	"quartet/pkg/natsd/blockfile"
	"quartet/pkg/natsd/salvage"
)

// A server that is killed while it creates a stream leaves the configuration without its checksum, or a part of it.
// What is written to the stream afterwards is there after later starts.
func TestFinishAStreamThatWasBeingCreated(t *testing.T) {
	for name, interrupt := range map[string]func(t *testing.T, dir string){
		"before the checksum": func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "meta.sum")))
		},
		"an empty checksum": func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "meta.sum"), 0))
		},
		"a part of the configuration": func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "meta.sum")))
			require.NoError(t, os.Truncate(filepath.Join(dir, "meta.inf"), 40))
		},
		"before the configuration": func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "meta.sum")))
			require.NoError(t, os.Remove(filepath.Join(dir, "meta.inf")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := t.TempDir()
			serve := func(do func(js jetstream.JetStream)) {
				require.NoError(t, salvage.Finish(store, "$G", zap.NewNop()))
				srv := must.Value(natsd.Start(natsd.Config{StoreDir: store, Port: natsd.InProcess}))(t)
				defer srv.Stop()
				nc := must.Value(srv.Connect("test"))(t)
				defer nc.Close()
				js := must.Value(jetstream.New(nc))(t)
				do(js)
			}
			create := func(js jetstream.JetStream) {
				must.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{
					Name: "S", Subjects: []string{"a"}, FirstSeq: 1000,
				}))(t)
			}
			serve(create)
			interrupt(t, blockfile.Stream(store, "$G", "S"))
			serve(func(js jetstream.JetStream) {
				create(js)
				ack := must.Value(js.Publish(t.Context(), "a", []byte("answered")))(t)
				require.EqualValues(t, 1000, ack.Sequence)
			})
			serve(func(js jetstream.JetStream) {
				require.EqualValues(t, 1, must.Value(js.Stream(t.Context(), "S"))(t).CachedInfo().State.Msgs)
			})
		})
	}
}

// A stream with messages is never removed.
func TestFinishLeavesWhatHasMessages(t *testing.T) {
	r := newRig(t, 3, 3)
	dir := filepath.Dir(r.dir())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "meta.inf"), []byte("{"), 0o600))
	require.NoError(t, salvage.Finish(r.cfg.Store, "$G", zap.NewNop()))
	require.FileExists(t, r.block(1))
	require.NoFileExists(t, filepath.Join(dir, "meta.sum"))
}
