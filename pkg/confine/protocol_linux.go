package confine

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxMessage bounds a message between a sandbox and its helper. Arguments and environment of a
// process are at most 2 MiB on Linux unless its stack limit is raised.
const maxMessage = 16 << 20

// request is a message to the helper. Exactly one field is set.
type request struct {
	Setup *setup    `json:"setup,omitempty"` // the first message
	Start *startMsg `json:"start,omitempty"` // with the files stdin, stdout and stderr
	Reap  int64     `json:"reap,omitempty"`  // the ID of an exited process
}

// ids are a user and a group outside of a sandbox.
type ids struct{ UID, GID int }

// setup describes the sandbox that a helper prepares.
type setup struct {
	Policy Policy   `json:"policy"`
	Mounts []string `json:"mounts"` // what is visible read-only, real paths
	Hosts  string   `json:"hosts"`  // what /etc/hosts contains; empty: the host's
	DNS    string   `json:"dns"`    // what /etc/resolv.conf contains; empty: the host's
	IDs    *ids     `json:"ids"`    // that the helper must map; nil: they are mapped, or there is no user namespace
}

// startMsg asks for a process.
type startMsg struct {
	ID       int64    `json:"id"`
	Argv     []string `json:"argv"`
	Env      []string `json:"env"`
	Dir      string   `json:"dir"`
	Terminal bool     `json:"terminal,omitempty"`
	Mark     uint64   `json:"mark,omitempty"`
}

// response is a message from the helper. Event says what happened.
type response struct {
	Event  event  `json:"event"`
	ID     int64  `json:"id,omitempty"`     // of the process
	Error  string `json:"error,omitempty"`  // why the event did not happen; empty: it happened
	Status int    `json:"status,omitempty"` // the wait status, of reaped
}

// event is what a response reports.
type event string

const (
	eventReady   event = "ready"   // with the descriptor of the network interface, for NetworkOutside
	eventStarted event = "started" // with a descriptor of the process
	eventExited  event = "exited"  // the process ended and is not reaped
	eventReaped  event = "reaped"
	eventEnding  event = "ending" // the helper ends; Error says why
)

// channel exchanges messages with files over a stream socket.
type channel struct {
	conn *net.UnixConn
	mu   sync.Mutex // guards writes
}

// newChannel returns the channel over a socket. It takes ownership of f.
func newChannel(f *os.File) (*channel, error) {
	conn, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("confine: not a Unix domain socket"), conn.Close())
	}
	return &channel{conn: u}, nil
}

// send writes a message.
func (c *channel) send(m any, files ...int) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("arguments and environment are %d bytes of JSON; the limit is %d", len(body), maxMessage)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	frame = append(frame, body...)
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, _, err := c.conn.WriteMsgUnix(frame, rights, nil)
	if err == nil && n < len(frame) {
		_, err = c.conn.Write(frame[n:])
	}
	return err
}

// receive reads a message into m and returns the files that came with it.
func (c *channel) receive(m any) (files []int, err error) {
	var header [4]byte
	oob := make([]byte, unix.CmsgSpace(8*4))
	n, oobn, _, _, err := c.conn.ReadMsgUnix(header[:], oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && oobn > 0 {
		files, err = parseRights(oob[:oobn])
	}
	if err == nil && n < len(header) {
		_, err = io.ReadFull(c.conn, header[n:])
	}
	if err == nil {
		size := binary.BigEndian.Uint32(header[:])
		if size > maxMessage {
			err = fmt.Errorf("confine: a message of %d bytes", size)
		} else {
			body := make([]byte, size)
			if _, err = io.ReadFull(c.conn, body); err == nil {
				err = json.Unmarshal(body, m)
			}
		}
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

func parseRights(oob []byte) (files []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for i := range messages {
		got, parseErr := unix.ParseUnixRights(&messages[i])
		files = append(files, got...)
		err = errors.Join(err, parseErr)
	}
	return files, err
}

func closeAll(files []int) {
	for _, f := range files {
		_ = unix.Close(f) // nothing was written to it
	}
}
