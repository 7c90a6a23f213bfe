package rpc

import (
	"net"

	"quartet/pkg/connlimit"
)

const (
	// prefaceBytes is how long the preface is with which a client begins HTTP/2.
	prefaceBytes = 24
	// frameHeadBytes is how long the head of a frame is.
	frameHeadBytes = 9
	// frameCost is what a frame on a connection whose caller has shown no valid credential counts beside its bytes. A
	// frame of settings has 9 bytes and is answered, so that without it 40 KiB are more than 4 000 answers.
	frameCost = 256
)

// framed is a connection of HTTP/2 that counts the frames of a caller until it has shown a valid credential. One
// goroutine may read from it.
type framed struct {
	net.Conn
	limited *connlimit.Conn
	head    [frameHeadBytes]byte
	got     int // bytes of head
	rest    int // bytes before the next head
}

// Read implements net.Conn.
func (f *framed) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if !f.limited.Proven() {
		f.limited.Charge(frameCost * int64(f.count(p[:n])))
	}
	return n, err
}

// count returns how many frames begin in what was read next.
func (f *framed) count(p []byte) (frames int) {
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
