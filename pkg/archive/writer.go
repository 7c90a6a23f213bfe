package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// The names of the entries of an archive, in their order: one manifest, the messages, the
// files, the totals.
const (
	manifestName = "quartet-backup.json"
	endName      = "quartet-backup-end.json"
	streamDir    = "streams/"
	fileDir      = "files/"

	// The names of PAX records, for what tar has no field for.
	paxSubject = "QUARTET.subject"
	paxHeader  = "QUARTET.header"
)

// Writer writes one archive. It is not safe for concurrent use.
type Writer struct {
	zip     *zstd.Encoder
	tar     *tar.Writer
	at      time.Time
	streams map[string]*Digest
	files   hash.Hash
	count   uint64
}

// NewWriter writes the beginning of an archive. It sets m.Format.
func NewWriter(w io.Writer, m Manifest) (*Writer, error) {
	zip, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)) // the server has other work
	if err != nil {
		return nil, err
	}
	m.Format = Format
	out := &Writer{zip: zip, tar: tar.NewWriter(zip), at: m.CutAt, streams: map[string]*Digest{}, files: sha256.New()}
	for _, s := range m.Streams {
		out.streams[s] = NewDigest()
	}
	return out, out.document(manifestName, m)
}

func (w *Writer) document(name string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if len(raw) > maxDocument { // Read would refuse it
		return fmt.Errorf("%s would have %d bytes for %d streams; at most %d are read again", name, len(raw),
			len(w.streams), maxDocument)
	}
	return w.entry(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(raw)), ModTime: w.at}, raw)
}

func (w *Writer) entry(h *tar.Header, body []byte) error {
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.tar.Write(body)
	return err
}

// Message writes the next message of a stream of the manifest. It returns an error if the
// stream is not in the manifest, the sequence is not larger than the last one, or the body is
// larger than MaxMessage.
func (w *Writer) Message(m Message) error {
	d := w.streams[m.Stream]
	switch {
	case d == nil:
		return fmt.Errorf("stream %q is not in the manifest", m.Stream)
	case m.Seq <= d.Last():
		return fmt.Errorf("message %d of %s comes after %d", m.Seq, m.Stream, d.Last())
	case len(m.Data) > MaxMessage:
		return fmt.Errorf("message %d of %s has %d bytes, at most %d fit", m.Seq, m.Stream, len(m.Data), MaxMessage)
	}
	d.Add(m)
	records := map[string]string{paxSubject: m.Subject}
	if len(m.Header) > 0 {
		raw, err := json.Marshal(m.Header)
		if err != nil {
			return err
		}
		records[paxHeader] = string(raw)
	}
	return w.entry(&tar.Header{
		Format: tar.FormatPAX, Name: streamDir + m.Stream + "/" + fmt.Sprintf("%020d", m.Seq), PAXRecords: records,
		Mode: 0o600, Size: int64(len(m.Data)), ModTime: w.at,
	}, m.Data)
}

// File writes a file of size bytes under a slash-separated path. It reads no more than size bytes
// of body, and returns an error if there are fewer. It does not check the path, which Read refuses
// if it leads out of its directory.
func (w *Writer) File(path string, mode int64, size int64, body io.Reader) error {
	if err := w.tar.WriteHeader(&tar.Header{
		Name: fileDir + path, Mode: mode & 0o777, Size: size,
		ModTime: w.at,
	}); err != nil {
		return err
	}
	beginFile(w.files, path, size)
	n, err := io.Copy(io.MultiWriter(w.tar, w.files), io.LimitReader(body, size))
	if err == nil && n < size {
		err = fmt.Errorf("%s became shorter while it was copied", path)
	}
	w.count++
	return err
}

func beginFile(h hash.Hash, path string, size int64) {
	_, _ = io.WriteString(h, path+"\x00"+strconv.FormatInt(size, 10)+"\x00") // a hash never fails
}

// Close writes the totals and completes the archive; Read refuses an archive without totals. It does not
// close the writer that NewWriter was given.
func (w *Writer) Close() (Totals, error) {
	t := Totals{Streams: map[string]Sum{}, Files: w.count, FilesSHA256: hex.EncodeToString(w.files.Sum(nil))}
	for name, d := range w.streams {
		t.Streams[name] = d.Sum()
	}
	if err := w.document(endName, t); err != nil {
		return t, err
	}
	if err := w.tar.Close(); err != nil {
		return t, err
	}
	return t, w.zip.Close()
}

// Abandon releases the resources of a Writer after an error, also one of Close. Nothing more is written.
func (w *Writer) Abandon() {
	w.zip.Reset(io.Discard)
	_ = w.zip.Close() // nothing is written any more
}

// streamOf returns the stream and the sequence in the name of a message's entry; ok is false for any other name.
func streamOf(name string) (stream string, seq uint64, ok bool) {
	stream, tail, ok := strings.Cut(strings.TrimPrefix(name, streamDir), "/")
	if !ok || len(tail) != 20 {
		return "", 0, false
	}
	seq, err := strconv.ParseUint(tail, 10, 64)
	return stream, seq, err == nil
}
