package connlimit

import "bytes"

const (
	// preface is what a client sends before the frames of HTTP/2.
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// frameHeadBytes is how long the head of a frame is.
	frameHeadBytes = 9
	// frameCost is what a frame on a connection whose caller has shown no valid credential counts beside its bytes. A
	// frame of settings has 9 bytes and is answered, so that without it 40 KiB are more than 4 000 answers.
	frameCost = 256
)

// Frames charges a Conn for the frames of HTTP/2 that are read from it, as they are after decryption, until its caller
// has shown a valid credential. What does not begin as HTTP/2 is not counted. One goroutine may use it.
type Frames struct {
	conn    *Conn
	preface int // bytes of it that were read; -1: the connection has another protocol
	head    [frameHeadBytes]byte
	got     int // bytes of head
	rest    int // bytes before the next head
}

// NewFrames returns the Frames of a connection; nil counts nothing.
func NewFrames(c *Conn) *Frames { return &Frames{conn: c} }

// Read counts what was read next.
func (f *Frames) Read(p []byte) {
	if f.conn != nil && !f.conn.Proven() {
		f.conn.Charge(frameCost * int64(f.count(p)))
	}
}

// count returns how many frames begin in what was read next.
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
