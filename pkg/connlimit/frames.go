package connlimit

import "bytes"

const (
	// preface is what a client sends before the frames of HTTP/2.
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// frameHeadBytes is the length of the head of a frame.
	frameHeadBytes = 9
	// frameCost is for how many bytes each frame on an unproven connection counts, in addition to its size. A frame
	// of settings has 9 bytes and must be answered: without frameCost, the default of Limits.Free would admit more
	// than 4 000 of them.
	frameCost = 256
)

// Frames charges a Conn frameCost for each frame of HTTP/2 that is read from it, while the Conn is unproven. It
// must be given the bytes after decryption. If they do not begin as HTTP/2, it charges nothing. It is not safe for
// concurrent use.
type Frames struct {
	conn    *Conn
	preface int // how many bytes of the preface were read; -1: the connection has another protocol
	head    [frameHeadBytes]byte
	got     int // how many bytes of head were read
	rest    int // how many bytes remain before the next head
}

// NewFrames returns the Frames of a connection. If c is nil, it charges nothing.
func NewFrames(c *Conn) *Frames { return &Frames{conn: c} }

// Read counts the frames that begin in p, which must be the bytes that were read next from the connection.
func (f *Frames) Read(p []byte) {
	if f.conn != nil && !f.conn.Proven() {
		f.conn.Charge(frameCost * int64(f.count(p)))
	}
}

// count returns how many heads of frames end in p, which are the bytes that were read next.
func (f *Frames) count(p []byte) (frames int) {
	if f.preface >= 0 && f.preface < len(preface) {
		n := min(len(preface)-f.preface, len(p))
		if !bytes.Equal(p[:n], []byte(preface[f.preface:f.preface+n])) {
			f.preface = -1
			return 0
		}
		f.preface += n
		p = p[n:]
	}
	if f.preface < 0 {
		return 0
	}
	for {
		skipped := min(f.rest, len(p))
		f.rest -= skipped
		copied := copy(f.head[f.got:], p[skipped:])
		f.got += copied
		p = p[skipped+copied:]
		if f.got < frameHeadBytes {
			return frames
		}
		frames++
		f.got, f.rest = 0, int(f.head[0])<<16|int(f.head[1])<<8|int(f.head[2])
	}
}
