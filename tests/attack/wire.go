package attack

import (
	"context"
	wirebytes "encoding/binary"
	"io"
	"net"
	"slices"
	"time"
)

// wire is a connection on which an attacker writes what no client would.
type wire struct {
	net.Conn
	frames []byte
	stream uint32
}

// dialWire connects from an address of loopback. It returns nil if the server refuses.
func dialWire(from, to string) *wire {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	c, err := d.DialContext(context.Background(), "tcp", to)
	if err != nil {
		return nil
	}
	return &wire{Conn: c, stream: 1}
}

const (
	frameData, frameHeaders, frameSettings = 0, 1, 4
	endHeaders                             = 4
)

// frame appends an HTTP/2 frame.
func (w *wire) frame(kind, flags byte, stream uint32, payload []byte) {
	head := make([]byte, 9)
	wirebytes.BigEndian.PutUint32(head, uint32(len(payload))<<8)
	head[3], head[4] = kind, flags
	wirebytes.BigEndian.PutUint32(head[5:], stream)
	w.frames = append(append(w.frames, head...), payload...)
}

// preface begins HTTP/2.
func (w *wire) preface() {
	w.frames = append(w.frames, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"...)
	w.frame(frameSettings, 0, 0, nil)
}

// call appends the header of a gRPC call, with more as names and values, and returns its stream.
func (w *wire) call(method string, more ...string) uint32 {
	var block []byte
	text := func(s string) { // of fewer than 127 bytes, or of fewer than 254
		if len(s) < 127 {
			block = append(block, byte(len(s)))
		} else {
			block = append(block, 127, byte(len(s)-127))
		}
		block = append(block, s...)
	}
	fields := append([]string{
		":method", "POST", ":scheme", "http", ":path", method, ":authority", "x", "content-type",
		"application/grpc", "te", "trailers",
	}, more...)
	// Literal fields without indexing: a zero before each name.
	for i := 0; i < len(fields); i += 2 {
		block = append(block, 0)
		text(fields[i])
		text(fields[i+1])
	}
	stream := w.stream
	w.stream += 2
	w.frame(frameHeaders, endHeaders, stream, block)
	return stream
}

// part appends the beginning of a message of size bytes: only its length and the first sent bytes.
func (w *wire) part(stream uint32, size, sent int) {
	head := make([]byte, 5)
	wirebytes.BigEndian.PutUint32(head[1:], uint32(size))
	rest := slices.Concat(head, make([]byte, sent))
	for len(rest) > 0 {
		n := min(len(rest), 16<<10)
		w.frame(frameData, 0, stream, rest[:n])
		rest = rest[n:]
	}
}

// send writes the frames, within term, or as many as are taken.
func (w *wire) send(term time.Duration) {
	_ = w.SetWriteDeadline(time.Now().Add(term))
	_, _ = w.Write(w.frames) // the server may close the connection
	w.frames = w.frames[:0]
}

// drain reads and drops what the server says until it closes the connection.
func (w *wire) drain() { _, _ = io.Copy(io.Discard, w.Conn) }
