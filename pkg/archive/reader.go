package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	// maxDocument bounds the sizes of the manifest and of the totals, which have some 220 bytes for each stream. Each
	// segment of a journal is a stream, so there may be 300 000 of them.
	maxDocument = 64 << 20
	// maxWindow bounds the memory for decompression, whatever a file claims to need.
	maxWindow = 64 << 20
)

// Visitor receives the entries of an archive. Its functions may be nil. If a function returns an
// error, Read stops and returns it. File receives the permission bits as mode; body is valid only during the
// call and need not be read to its end. What the functions received is complete and unchanged only if Read
// returns no error.
type Visitor struct {
	Manifest func(Manifest) error
	Message  func(Message) error
	File     func(path string, mode, size int64, body io.Reader) error
}

// Read reads an archive to its end, checks it, and passes its entries to v.
func Read(r io.Reader, v Visitor) (Manifest, Totals, error) {
	rd := &reader{visitor: v, files: sha256.New(), streams: map[string]*Digest{}}
	zip, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return Manifest{}, Totals{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	defer zip.Close()
	totals, err := rd.read(tar.NewReader(zip))
	if err == nil {
		// Bytes after the end are not covered by the totals.
		if n, tail := io.Copy(io.Discard, zip); tail != nil || n > 0 {
			err = fmt.Errorf("%w: something follows its end", ErrDamaged)
		}
	}
	return rd.manifest, totals, err
}

// visitorError is an error that a function of the Visitor returned.
type visitorError struct{ error }

func (o visitorError) Unwrap() error { return o.error }

type reader struct {
	visitor  Visitor
	manifest Manifest
	began    bool
	streams  map[string]*Digest
	files    hash.Hash
	count    uint64
}

func (r *reader) read(in *tar.Reader) (Totals, error) {
	for {
		h, err := in.Next()
		if err != nil {
			return Totals{}, r.readError(err)
		}
		if !r.began {
			if err := r.begin(h, in); err != nil {
				return Totals{}, err
			}
			continue
		}
		if h.Name == endName {
			return r.end(h, in)
		}
		if err := r.entry(h, in); err != nil {
			var mine visitorError
			if errors.As(err, &mine) {
				return Totals{}, mine.error
			}
			return Totals{}, r.readError(err)
		}
	}
}

// readError returns the error of Read for an error of reading the tar. Before the manifest was
// read it is ErrForeign, unless the file ends in the middle of an entry. After that it is ErrCut
// if the file ended too early, and ErrDamaged otherwise; an error of the disk is returned
// unchanged. ErrDamaged and ErrForeign are always returned unchanged. It is not called for
// errors of the Visitor.
func (r *reader) readError(err error) error {
	switch {
	case errors.Is(err, ErrDamaged), errors.Is(err, ErrForeign):
		return err
	case !r.began && errors.Is(err, io.EOF):
		return fmt.Errorf("%w: it is empty", ErrForeign)
	case !r.began && !errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", ErrForeign, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it ends before it says that it does; make another one", ErrCut)
	default:
		var path *fs.PathError
		if errors.As(err, &path) {
			return err // an error of the disk, not of the file
		}
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
}

func (r *reader) begin(h *tar.Header, in io.Reader) error {
	if h.Name != manifestName {
		return fmt.Errorf("%w: it begins with %q", ErrForeign, h.Name)
	}
	if err := document(h, in, &r.manifest); err != nil {
		return r.readError(err)
	}
	if r.manifest.Format != Format {
		return fmt.Errorf("%w of a format that this version knows: its format is %d, known is %d", ErrForeign,
			r.manifest.Format, Format)
	}
	r.began = true
	for _, s := range r.manifest.Streams {
		r.streams[s] = NewDigest()
	}
	if r.visitor.Manifest != nil {
		return r.visitor.Manifest(r.manifest)
	}
	return nil
}

func document(h *tar.Header, in io.Reader, v any) error {
	if h.Size > maxDocument {
		return fmt.Errorf("%w: %s has %d bytes", ErrDamaged, h.Name, h.Size)
	}
	raw, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, h.Name, err)
	}
	return nil
}

func (r *reader) entry(h *tar.Header, in io.Reader) error {
	if path, ok := strings.CutPrefix(h.Name, fileDir); ok && h.Typeflag == tar.TypeReg {
		return r.file(path, h, in)
	}
	stream, seq, ok := streamOf(h.Name)
	d := r.streams[stream]
	switch {
	case !ok, d == nil, h.Typeflag != tar.TypeReg:
		return fmt.Errorf("%w: it holds %q, which no backup has", ErrDamaged, h.Name)
	case h.Size > MaxMessage:
		return fmt.Errorf("%w: message %d of %s has %d bytes", ErrDamaged, seq, stream, h.Size)
	case seq <= d.Last():
		return fmt.Errorf("%w: message %d of %s comes after %d", ErrDamaged, seq, stream, d.Last())
	}
	m := Message{Stream: stream, Seq: seq, Subject: h.PAXRecords[paxSubject]}
	if raw := h.PAXRecords[paxHeader]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &m.Header); err != nil {
			return fmt.Errorf("%w: headers of message %d of %s: %w", ErrDamaged, seq, stream, err)
		}
	}
	var err error
	if m.Data, err = io.ReadAll(in); err != nil {
		return err
	}
	d.Add(m)
	if r.visitor.Message != nil {
		if err := r.visitor.Message(m); err != nil {
			return visitorError{err}
		}
	}
	return nil
}

func (r *reader) file(path string, h *tar.Header, in io.Reader) error {
	if !fs.ValidPath(path) || path == "." {
		return fmt.Errorf("%w: the path %q leaves its directory", ErrDamaged, path)
	}
	r.count++
	beginFile(r.files, path, h.Size)
	body := io.TeeReader(in, r.files)
	if r.visitor.File != nil {
		if err := r.visitor.File(path, h.Mode&0o777, h.Size, body); err != nil {
			return visitorError{err}
		}
	}
	_, err := io.Copy(io.Discard, body) // what the visitor left
	return err
}

func (r *reader) end(h *tar.Header, in *tar.Reader) (Totals, error) {
	var t Totals
	if err := document(h, in, &t); err != nil {
		return t, r.readError(err)
	}
	for name, d := range r.streams {
		if got, want := d.Sum(), t.Streams[name]; got != want {
			return t, fmt.Errorf("%w: stream %s has %d messages up to %d, its end says %d up to %d, or their "+
				"contents differ", ErrDamaged, name, got.Messages, got.Last, want.Messages, want.Last)
		}
	}
	if len(t.Streams) != len(r.streams) {
		return t, fmt.Errorf("%w: its end speaks of %d streams, its beginning of %d", ErrDamaged, len(t.Streams),
			len(r.streams))
	}
	if next, err := in.Next(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = fmt.Errorf("%w: %q follows its end", ErrDamaged, next.Name)
		}
		return t, r.readError(err)
	}
	if sum := hex.EncodeToString(r.files.Sum(nil)); t.Files != r.count || t.FilesSHA256 != sum {
		return t, fmt.Errorf("%w: it has %d files, its end says %d, or their contents differ", ErrDamaged, r.count,
			t.Files)
	}
	return t, nil
}
