package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// line is a pipe to a client. When the client has nothing more to say, its end
// is kept back until what it asked for is answered: `printf … | quartet mcp`
// is a program too, and a call that was sent is not to be cut short.
//
// What is no message is answered with an error and passed over: to the SDK it
// would be the end of the session, and to a coding agent that of its memory.
type line struct {
	ctx context.Context //nolint:containedctx // of the session, which the pipe belongs to
	in  *bufio.Reader
	max int // bytes of one message
	end io.Closer

	writing sync.Mutex
	out     io.Writer

	mu      sync.Mutex
	owed    map[string]int // requests without an answer, by their id: some clients use one again
	settled chan struct{}  // closed when the last one is answered after the end
	rest    []byte         // of a line that was read
	over    error
}

func newLine(ctx context.Context, in io.Reader, out io.Writer, most int) *line {
	l := &line{ctx: ctx, in: bufio.NewReaderSize(in, 64<<10), out: out, max: most, owed: map[string]int{}}
	l.end, _ = in.(io.Closer)
	return l
}

func (l *line) transport() sdk.Transport {
	return &sdk.IOTransport{Reader: lineReader{l}, Writer: lineWriter{l}}
}

// envelope is what tells requests and answers apart.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
}

type lineReader struct{ *line }

// Read gives what the client says, one line after the other.
func (r lineReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.over == nil {
		var e envelope
		r.rest, e = r.next()
		if len(r.rest) > 0 && string(e.ID) != string(none) && e.Method != "" {
			r.mu.Lock()
			r.owed[string(e.ID)]++
			r.mu.Unlock()
		}
	}
	if len(r.rest) == 0 {
		r.await()
		return 0, r.over
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// next reads a line. What is no message is answered here, and empty.
func (r lineReader) next() ([]byte, envelope) {
	text, id, err := r.readLine()
	r.over = err
	if id != nil {
		r.refuse(id, jsonrpc.CodeInvalidRequest, fmt.Sprintf("the message is larger than %d bytes; send less at once", r.max))
		return nil, envelope{}
	}
	body := bytes.TrimSpace(text)
	if len(body) == 0 {
		return nil, envelope{}
	}
	var e envelope
	_, broken := jsonrpc.DecodeMessage(body)
	if json.Unmarshal(body, &e) != nil || !idAlone.Match(e.ID) {
		e.ID = none
	}
	switch {
	case !json.Valid(body):
		r.refuse(none, jsonrpc.CodeParseError, "the line is not JSON; send one JSON-RPC message a line")
		return nil, e
	case body[0] == '[':
		r.refuse(none, jsonrpc.CodeInvalidRequest, "batches are not taken; send one JSON-RPC message a line")
		return nil, e
	case broken != nil:
		r.refuse(e.ID, jsonrpc.CodeInvalidRequest, fmt.Sprintf("the line is no JSON-RPC message: %v", broken))
		return nil, e
	}
	return append(body, '\n'), e
}

// readLine reads to the end of a line. Of one that is too long nothing is kept
// but, where it can be told, the id that an answer is waited for under.
func (r lineReader) readLine() (text []byte, tooLong json.RawMessage, err error) {
	var head, tail []byte
	for {
		part, err := r.in.ReadSlice('\n')
		switch {
		case head != nil:
			tail = append(tail, part...)
			tail = tail[max(0, len(tail)-idWithin):]
		default:
			if text = append(text, part...); len(text) > r.max {
				head, tail = text[:min(len(text), idWithin)], bytes.Clone(text[max(0, len(text)-idWithin):])
			}
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case head != nil:
			return nil, idOf(head, tail), err
		default:
			return text, nil, err
		}
	}
}

// idWithin is how far from either end of a message its id is looked for.
const idWithin = 1 << 10

var (
	none      = json.RawMessage("null")
	idAlone   = regexp.MustCompile(`^("|-?\d)`)
	idAtFirst = regexp.MustCompile(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)\s*,`)
	idAtLast  = regexp.MustCompile(`,\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)\s*\}\s*$`)
)

// idOf finds the id of a message that cannot be read whole; null if there is
// none.
func idOf(head, tail []byte) json.RawMessage {
	for _, found := range [][][]byte{idAtFirst.FindSubmatch(head), idAtLast.FindSubmatch(tail)} {
		if found != nil && json.Valid(found[1]) {
			return bytes.Clone(found[1])
		}
	}
	return none
}

// refuse answers what the SDK is not to see.
func (l *line) refuse(id json.RawMessage, code int, message string) {
	answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": message}})
	if err == nil {
		_, _ = l.write(append(answer, '\n')) // a client that left misses nothing
	}
}

func (l *line) write(p []byte) (int, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.out.Write(p)
}

// await returns when every request is answered, or that takes longer than any
// call may.
func (r lineReader) await() {
	r.mu.Lock()
	settled := make(chan struct{})
	if len(r.owed) == 0 {
		close(settled)
	} else {
		r.settled = settled
	}
	r.mu.Unlock()
	timer := time.NewTimer(callTerm)
	defer timer.Stop()
	select {
	case <-settled:
	case <-timer.C:
	case <-r.ctx.Done():
	}
}

// Close lets a read of a terminal end.
func (r lineReader) Close() error {
	if r.end == nil {
		return nil
	}
	return r.end.Close()
}

type lineWriter struct{ *line }

// Write sends one message.
func (w lineWriter) Write(p []byte) (int, error) {
	n, err := w.write(p)
	var e envelope
	if json.Unmarshal(bytes.TrimSpace(p), &e) == nil && len(e.ID) > 0 && e.Method == "" {
		w.mu.Lock()
		if w.owed[string(e.ID)]--; w.owed[string(e.ID)] <= 0 {
			delete(w.owed, string(e.ID))
		}
		if w.settled != nil && len(w.owed) == 0 {
			close(w.settled)
			w.settled = nil
		}
		w.mu.Unlock()
	}
	return n, err
}

// Close leaves the pipe to whoever opened it.
func (lineWriter) Close() error { return nil }
