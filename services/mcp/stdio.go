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

// line is a pipe to a client. The end of its input is passed to the SDK only after every
// request has been answered, so that `printf … | quartet mcp` gets all responses.
//
// A line that is not a message is answered with an error and skipped. The SDK would end
// the session, and a coding agent would lose its memory.
type line struct {
	ctx context.Context //nolint:containedctx // the context of the session
	in  *bufio.Reader
	max int // bytes of one message
	end io.Closer

	writeMu sync.Mutex
	out     io.Writer

	mu       sync.Mutex
	inflight map[string]int // requests without a response, by id; some clients reuse ids
	answered chan struct{}  // set after the end of the input; closed when the last request is answered
	rest     []byte         // the rest of the line that was read last
	readErr  error
}

// newLine returns the pipe of a session with the context ctx. most is the size of the largest
// message in bytes. If in is an io.Closer, closing the reader closes it.
func newLine(ctx context.Context, in io.Reader, out io.Writer, most int) *line {
	l := &line{ctx: ctx, in: bufio.NewReaderSize(in, 64<<10), out: out, max: most, inflight: map[string]int{}}
	l.end, _ = in.(io.Closer)
	return l
}

// transport returns the pipe as the SDK uses it.
func (l *line) transport() sdk.Transport {
	return &sdk.IOTransport{Reader: lineReader{l}, Writer: lineWriter{l}}
}

// envelope has the fields that distinguish requests from responses.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
}

// lineReader is the side of a pipe from which the SDK reads. One goroutine may use it.
type lineReader struct{ *line }

// Read returns the client's messages, one line after the other, and leaves out lines that are no
// messages; see next. It returns the error of the input, such as io.EOF, only once await returns.
func (r lineReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.readErr == nil {
		var e envelope
		r.rest, e = r.next()
		if len(r.rest) > 0 && string(e.ID) != string(none) && e.Method != "" {
			r.mu.Lock()
			r.inflight[string(e.ID)]++
			r.mu.Unlock()
		}
	}
	if len(r.rest) == 0 {
		r.await()
		return 0, r.readErr
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// next reads a line, and returns it with the fields that tell a request from a response. A line that
// is no message is answered with an error; then, and for an empty line, message is nil. next sets
// readErr at the end of the input.
func (r lineReader) next() (message []byte, head envelope) {
	text, id, err := r.readLine()
	r.readErr = err
	if id != nil {
		r.refuse(id, jsonrpc.CodeInvalidRequest, fmt.Sprintf("the message is larger than %d bytes; send less at once",
			r.max))
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
		r.refuse(none, jsonrpc.CodeInvalidRequest, "batches are not supported; send one JSON-RPC message a line")
		return nil, e
	case broken != nil:
		r.refuse(e.ID, jsonrpc.CodeInvalidRequest, fmt.Sprintf("the line is not a JSON-RPC message: %v", broken))
		return nil, e
	}
	return append(body, '\n'), e
}

// readLine reads a line. If the line is longer than max, text is nil and tooLong is the id of its
// message, null if that is unknown; otherwise tooLong is nil. err may come with the last line.
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

// idWithin is how many bytes at either end of a message are searched for its id.
const idWithin = 1 << 10

var (
	none      = json.RawMessage("null") // the id of a message without one
	idAlone   = regexp.MustCompile(`^("|-?\d)`)
	idAtFirst = regexp.MustCompile(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2.0"\s*,\s*)?"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)\s*,`)
	idAtLast  = regexp.MustCompile(`,\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)\s*\}\s*$`)
)

// idOf finds the id of a message of which only the beginning and the end are known; it is
// null if there is none.
func idOf(head, tail []byte) json.RawMessage {
	for _, found := range [][][]byte{idAtFirst.FindSubmatch(head), idAtLast.FindSubmatch(tail)} {
		if found != nil && json.Valid(found[1]) {
			return bytes.Clone(found[1])
		}
	}
	return none
}

// refuse answers a message that is not passed to the SDK.
func (l *line) refuse(id json.RawMessage, code int, message string) {
	answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{
		"code": code, "message": message,
	}})
	if err == nil {
		_, _ = l.write(append(answer, '\n')) // the client may have closed its end
	}
}

// write writes one message, a line with its end. It may be called concurrently.
func (l *line) write(p []byte) (int, error) {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	return l.out.Write(p)
}

// await returns when every request is answered, but at the latest after the maximum time
// of a call or when the session ends.
func (r lineReader) await() {
	r.mu.Lock()
	answered := make(chan struct{})
	if len(r.inflight) == 0 {
		close(answered)
	} else {
		r.answered = answered
	}
	r.mu.Unlock()
	timer := time.NewTimer(callTerm)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C:
	case <-r.ctx.Done():
	}
}

// Close ends a blocked read.
func (r lineReader) Close() error {
	if r.end == nil {
		return nil
	}
	return r.end.Close()
}

// lineWriter is the side of a pipe to which the SDK writes.
type lineWriter struct{ *line }

// Write sends one message. A response ends the wait of await for the request with its id.
func (w lineWriter) Write(p []byte) (int, error) {
	n, err := w.write(p)
	var e envelope
	if json.Unmarshal(bytes.TrimSpace(p), &e) == nil && len(e.ID) > 0 && e.Method == "" {
		w.mu.Lock()
		if w.inflight[string(e.ID)]--; w.inflight[string(e.ID)] <= 0 {
			delete(w.inflight, string(e.ID))
		}
		if w.answered != nil && len(w.inflight) == 0 {
			close(w.answered)
			w.answered = nil
		}
		w.mu.Unlock()
	}
	return n, err
}

// Close does nothing: the caller of ServeStdio owns the pipe.
func (lineWriter) Close() error { return nil }
