package rpc_test

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quartet/pkg/connlimit"
)

// TestG8_FramesOfNoCall: each frame counts as 256 bytes more before a credential, so that settings, which are
// answered, are bounded in number.
func TestG8_FramesOfNoCall(t *testing.T) {
	const preface, settings, cost = 24 + 9, 9, 256
	const kindSettings, acknowledges = 4, 1
	const answered = 5 // frames of settings after the first
	for _, c := range []struct {
		free int64
		want int
	}{
		{preface + cost + answered*(settings+cost), answered},
		// eight seconds, in which the budget grows, from the next
		{preface + cost + answered*(settings+cost) + 1, answered},
		{preface + cost + answered*(settings+cost) + settings, answered + 1},
	} {
		_, _, address := arrivals(t, connlimit.Limits{Free: c.free, Rate: 1})
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		// send sends an empty frame of settings.
		send := func(before string) {
			_, err := conn.Write(append([]byte(before), 0, 0, 0, kindSettings, 0, 0, 0, 0, 0))
			require.NoError(t, err)
		}
		// acknowledged waits until one more frame of settings was answered.
		acknowledged := func(within time.Duration) error {
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(within)))
			for {
				head := make([]byte, settings)
				if _, err := io.ReadFull(conn, head); err != nil {
					return err
				}
				size := binary.BigEndian.Uint32(append([]byte{0}, head[:3]...))
				if _, err := io.CopyN(io.Discard, conn, int64(size)); err != nil {
					return err
				}
				if head[3] == kindSettings && head[4] == acknowledges {
					return nil
				}
			}
		}
		send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		require.NoError(t, acknowledged(time.Minute))
		for range c.want {
			send("")
			require.NoError(t, acknowledged(time.Minute))
		}
		send("")
		require.ErrorIs(t, acknowledged(50*time.Millisecond), os.ErrDeadlineExceeded, "%d bytes", c.free)
	}
}
