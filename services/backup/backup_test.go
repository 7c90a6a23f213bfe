package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"quartet/pkg/archive"
	"quartet/pkg/fault"
	"quartet/pkg/keyfile"
	"quartet/pkg/must"
	"quartet/pkg/natsd/natsdtest"
	backupv1 "quartet/pkg/pb/quartet/backup/v1"
)

// broker starts a broker with streams that hold the given numbers of messages.
// fixed returns streams for Config.Journals.
func fixed(names ...string) func(context.Context, jetstream.JetStream) ([]string, error) {
	return func(context.Context, jetstream.JetStream) ([]string, error) { return names, nil }
}

func broker(t *testing.T, messages map[string]int) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc := natsdtest.Connect(t)
	js := must.Value(jetstream.New(nc))(t)
	for name, n := range messages {
		must.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}}))(t)
		publish(t, js, name, 0, n)
	}
	return nc, js
}

// publish stores messages from..to-1 in a stream.
func publish(t *testing.T, js jetstream.JetStream, name string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		msg := &nats.Msg{Subject: name + ".x", Data: body(name, i), Header: nats.Header{"Number": {fmt.Sprint(i)}}}
		must.Value(js.PublishMsg(t.Context(), msg))(t)
	}
}

func body(name string, i int) []byte { return fmt.Appendf(nil, "%s message %d", name, i) }

// download collects what ExportBackup sends. onChunk, if set, is called before each chunk is
// taken.
type download struct {
	grpc.ServerStream

	context func() context.Context
	onChunk func() error
	largest int
	chunks  int
	all     bytes.Buffer
	// done is what each message with a chunk said.
	done []float64
	// contents is what the last message said.
	contents *backupv1.BackupContents
}

// ring has the installation's key.
var ring = keyfile.New(time.Now())

func cfgKey() keyfile.Key { return ring.Active() }

func (d *download) Context() context.Context { return d.context() }

func (d *download) Send(resp *backupv1.ExportBackupResponse) error {
	if d.onChunk != nil {
		if err := d.onChunk(); err != nil {
			return err
		}
	}
	d.chunks++
	d.largest = max(d.largest, len(resp.GetChunk()))
	d.all.Write(resp.GetChunk())
	if resp.GetChunk() != nil {
		d.done = append(d.done, resp.GetDone())
	}
	if resp.GetContents() != nil {
		d.contents = resp.GetContents()
	}
	return nil
}

// contents is what a backup holds, read back.
type contents struct {
	manifest archive.Manifest
	totals   archive.Totals
	messages map[string][]archive.Message
	files    map[string]string
	modes    map[string]os.FileMode
}

func unpack(t *testing.T, raw io.Reader) contents {
	t.Helper()
	c := contents{messages: map[string][]archive.Message{}, files: map[string]string{}, modes: map[string]os.FileMode{}}
	all, err := io.ReadAll(raw)
	require.NoError(t, err)
	f := must.Value(archive.Open(bytes.NewReader(all), archive.Keys{Ring: ring}))(t)
	c.manifest, c.totals, err = f.Read(archive.Visitor{
		Message: func(m archive.Message) error {
			m.Data = bytes.Clone(m.Data)
			c.messages[m.Stream] = append(c.messages[m.Stream], m)
			return nil
		},
		File: func(path string, mode, _ int64, body io.Reader) error {
			text, err := io.ReadAll(body)
			c.files[path], c.modes[path] = string(text), os.FileMode(mode)
			return err
		},
	})
	require.NoError(t, err)
	return c
}

func export(t *testing.T, cfg Config, nc *nats.Conn, req *backupv1.ExportBackupRequest) (*download, error) {
	t.Helper()
	cfg.Key = func() keyfile.Key { return ring.Active() }
	s := must.Value(New(cfg, Deps{Conn: func() *nats.Conn { return nc }, Partitions: func() map[string]int {
		return map[string]int{"work": 6}
	}}))(t)
	out := &download{context: t.Context}
	return out, s.ExportBackup(req, out)
}

func TestABackupHoldsStreamsAndHomes(t *testing.T) {
	nc, _ := broker(t, map[string]int{"J_work": 300, "J_agent": 1, "J_task": 0, "OUTPUT": 5})
	home := t.TempDir()
	write := func(path string, mode os.FileMode, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(home, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(home, path), []byte(text), mode))
	}
	write("acme/a1/notes.md", 0o644, "notes")
	write("acme/a1/run.sh", 0o755, "#!/bin/sh\n")
	write("acme/a1/empty", 0o600, "")
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("of the host"), 0o600))
	require.NoError(t, os.Symlink(secret, filepath.Join(home, "acme", "a1", "link")))
	require.NoError(t, os.Symlink(filepath.Dir(secret), filepath.Join(home, "acme", "a1", "directory")))

	cfg := Config{
		Journals: fixed("J_work", "J_agent", "J_task"), Output: "OUTPUT", Home: home,
		Key: func() keyfile.Key { return ring.Active() }, Version: "v1",
	}
	out := must.Value(export(t, cfg, nc, &backupv1.ExportBackupRequest{}))(t)
	sum := sha256.Sum256(out.all.Bytes())
	require.Equal(t, hex.EncodeToString(sum[:]), out.contents.GetSha256())
	require.NotContains(t, out.all.String(), "notes")
	c := unpack(t, &out.all)
	require.Equal(t, ring.Active().ID, out.contents.GetInstallationKeyId())
	require.Equal(t, "v1", out.contents.GetVersion())
	require.True(t, out.contents.GetCutAt().AsTime().Equal(c.manifest.CutAt))
	require.EqualValues(t, 3, out.contents.GetFiles())
	require.Len(t, out.contents.GetStreams(), 4)
	for _, s := range out.contents.GetStreams() {
		require.EqualValues(t, c.totals.Streams[s.GetName()].Messages, s.GetMessages())
		require.EqualValues(t, c.totals.Streams[s.GetName()].Bytes, s.GetBytes())
	}
	require.Equal(t, []string{"J_work", "J_agent", "J_task", "OUTPUT"}, c.manifest.Streams)
	require.Equal(t, ring.Active().ID, c.manifest.Key)
	require.Equal(t, "v1", c.manifest.Version)
	require.Equal(t, map[string]int{"work": 6}, c.manifest.Partitions)
	for name, n := range map[string]int{"J_work": 300, "J_agent": 1, "J_task": 0, "OUTPUT": 5} {
		require.Len(t, c.messages[name], n, name)
		for i, m := range c.messages[name] {
			require.Equal(t, archive.Message{
				Stream: name, Subject: name + ".x", Seq: uint64(i + 1), Header: map[string][]string{
					"Number": {fmt.Sprint(i)},
				}, Data: body(name, i),
			}, m)
		}
		require.EqualValues(t, n, c.totals.Streams[name].Messages, name)
	}
	require.Equal(t, map[string]string{
		"acme/a1/notes.md": "notes", "acme/a1/run.sh": "#!/bin/sh\n",
		"acme/a1/empty": "",
	}, c.files, "links are left out")
	require.Equal(t, os.FileMode(0o755), c.modes["acme/a1/run.sh"])
	require.EqualValues(t, 3, c.totals.Files)

	out = must.Value(export(t, cfg, nc, &backupv1.ExportBackupRequest{OmitOutput: true}))(t)
	c = unpack(t, &out.all)
	require.Equal(t, []string{"J_work", "J_agent", "J_task"}, c.manifest.Streams)
	require.Empty(t, c.messages["OUTPUT"])
}

// What is stored after the backup began is not in it, in no stream: otherwise one plane
// would have the effect of an event that another plane does not have.
func TestABackupIsOfOneMoment(t *testing.T) {
	nc, js := broker(t, map[string]int{"J_work": 20, "J_agent": 20})
	before := time.Now()
	w := must.Value(archive.NewWriter(io.Discard, archive.Manifest{Streams: []string{"J_work", "J_agent"}}))(t)
	moment := must.Value(chooseCut(t.Context(), js, []string{"J_work", "J_agent"}))(t)
	require.NoError(t, copyStream(t.Context(), js, "J_work", moment, w.Message))
	publish(t, js, "J_work", 20, 25)
	publish(t, js, "J_agent", 20, 25)
	require.NoError(t, copyStream(t.Context(), js, "J_agent", moment, w.Message))
	totals := must.Value(w.Close())(t)
	require.EqualValues(t, 20, totals.Streams["J_work"].Messages)
	require.EqualValues(t, 20, totals.Streams["J_agent"].Messages, "stored before the moment, and no later ones")

	out := must.Value(export(t, Config{Journals: fixed("J_work", "J_agent")}, nc, &backupv1.ExportBackupRequest{}))(t)
	c := unpack(t, &out.all)
	require.Len(t, c.messages["J_agent"], 25)
	require.WithinRange(t, c.manifest.CutAt, before, time.Now())

	// The clock of the broker was set back by an hour after these were stored.
	moment = must.Value(chooseCut(t.Context(), js, []string{"J_work", "J_agent"}))(t)
	moment.at = moment.at.Add(-time.Hour)
	require.ErrorContains(t, copyStream(t.Context(), js, "J_work", moment, w.Message), "the clock was set back")
}

func TestABackupIsSentInBoundedChunks(t *testing.T) {
	nc, js := broker(t, map[string]int{"J_work": 0})
	noise := make([]byte, 700<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // does not compress
	for range 3 {
		must.Value(js.Publish(t.Context(), "J_work.x", noise))(t)
	}
	home := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(home, "large"), bytes.Repeat(noise, 13), 0o600)) // beyond wholeFile
	out := must.Value(export(t, Config{Journals: fixed("J_work"), Home: home}, nc, &backupv1.ExportBackupRequest{}))(t)
	require.LessOrEqual(t, out.largest, chunkBytes)
	require.Greater(t, out.chunks, 1)
	require.IsNonDecreasing(t, out.done)
	require.Less(t, out.done[0], 0.5, "the home is larger than the journal")
	require.InDelta(t, 1, out.done[len(out.done)-1], 0.001)
	c := unpack(t, &out.all)
	require.Equal(t, string(bytes.Repeat(noise, 13)), c.files["large"])
	require.Equal(t, noise, c.messages["J_work"][2].Data)
}

func TestWhatIsMissing(t *testing.T) {
	nc, _ := broker(t, map[string]int{"J_work": 2})
	none := filepath.Join(t.TempDir(), "none")
	out := must.Value(export(t, Config{Journals: fixed("J_work"), Output: "OUTPUT", Home: none}, nc,
		&backupv1.ExportBackupRequest{}))(t, "without output and homes yet")
	c := unpack(t, &out.all)
	require.Equal(t, []string{"J_work"}, c.manifest.Streams)
	require.Empty(t, c.files)

	_, err := export(t, Config{Journals: fixed("J_work", "J_agent")}, nc, &backupv1.ExportBackupRequest{})
	require.ErrorIs(t, err, fault.Storage, "a journal that is missing is a loss")
	require.ErrorContains(t, err, "J_agent")

	require.Error(t, must.Err(New(Config{Journals: fixed("J_work"), Key: cfgKey}, Deps{})))
	require.Error(t, must.Err(New(Config{Journals: fixed("J_work")}, Deps{Conn: func() *nats.Conn { return nc }})))
	require.Error(t, must.Err(New(Config{Key: cfgKey}, Deps{Conn: func() *nats.Conn { return nc }})))
}

func TestABackupEndsWithItsCaller(t *testing.T) {
	nc, _ := broker(t, map[string]int{"J_work": 10})
	s := must.Value(New(Config{Journals: fixed("J_work"), Key: cfgKey}, Deps{Conn: func() *nats.Conn { return nc }}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := &download{context: func() context.Context { return ctx }, onChunk: func() error {
		cancel()
		return context.Canceled
	}}
	require.ErrorIs(t, s.ExportBackup(&backupv1.ExportBackupRequest{}, out), context.Canceled)

	cut := &download{context: t.Context, onChunk: func() error { return io.ErrClosedPipe }}
	require.Error(t, s.ExportBackup(&backupv1.ExportBackupRequest{}, cut))
	require.Zero(t, cut.all.Len())
}

// A backup is for those whom the request names, and a wrong recipient is refused before anything
// is read.
func TestI21_RecipientsOfABackup(t *testing.T) {
	nc, _ := broker(t, map[string]int{"J_work": 3})
	mine := must.Value(age.GenerateX25519Identity())(t)
	cfg := Config{Journals: fixed("J_work")}
	out, err := export(t, cfg, nc, &backupv1.ExportBackupRequest{Recipients: []string{mine.Recipient().String()}})
	require.NoError(t, err)
	file := bytes.NewReader(out.all.Bytes())
	_, err = archive.Open(file, archive.Keys{Ring: ring})
	require.ErrorIs(t, err, archive.ErrIdentity, "the installation's key alone does not read it")
	f := must.Value(archive.Open(file, archive.Keys{Ring: ring, Identities: []age.Identity{mine}}))(t)
	_, totals, err := f.Read(archive.Visitor{})
	require.NoError(t, err)
	require.EqualValues(t, 3, totals.Streams["J_work"].Messages)

	for _, bad := range [][]string{{"age1"}, {""}, slices.Repeat([]string{mine.Recipient().String()},
		archive.MaxRecipients+1)} {
		out, err := export(t, cfg, nc, &backupv1.ExportBackupRequest{Recipients: bad})
		require.ErrorIs(t, err, fault.InvalidArgument)
		require.Zero(t, out.chunks)
	}
}
