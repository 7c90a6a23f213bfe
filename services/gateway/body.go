package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"quartet/pkg/fault"
)

const (
	// bodyTime is how long a client may take to send a body.
	bodyTime = 30 * time.Second
	// bodyGrace is how long it may take before bodyRate is demanded.
	bodyGrace = 5 * time.Second
	// bodyRate is the lowest rate of a body, in bytes per second.
	bodyRate = 1 << 10
	// bodyAtOnce is the largest buffer that is allocated for a body before it arrives.
	bodyAtOnce = 256 << 10
	// drainTime413 is how long a client may go on sending what is too large, before the response
	// and the end of the connection.
	drainTime413 = time.Second
)

// readBody reads at most limit bytes, within bodyTime and at bodyRate at least. A larger body is
// refused with TOO_LARGE after reading and discarding as much again, for drainTime413 at most: most
// clients read the response only when they have sent everything, and a connection that is
// closed earlier takes the response with it.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	control := http.NewResponseController(w)
	var body []byte
	var err error
	announced := r.ContentLength > limit
	if !announced {
		// A body of known size is read into a buffer of that size: io.ReadAll allocates five times as much.
		buf := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), bodyAtOnce)+bytes.MinRead))
		_, err = buf.ReadFrom(io.LimitReader(&paced{from: r.Body, control: control, began: time.Now()}, limit+1))
		body = buf.Bytes()
	}
	switch {
	case announced && strings.EqualFold(r.Header.Get("Expect"), "100-continue"):
		hangUp(w, control) // the client has sent nothing yet; reading would ask for it
		return nil, tooLarge(limit)
	case announced || int64(len(body)) > limit:
		_ = control.SetReadDeadline(time.Now().Add(drainTime413)) // a writer without deadlines has no slow clients
		rest := 2*limit - int64(len(body))
		// One byte more tells whether that was all.
		if n, err := io.CopyN(io.Discard, r.Body, rest+1); !errors.Is(err, io.EOF) || n > rest {
			hangUp(w, control) // the rest of the body is still in the connection
		} else {
			_ = control.SetReadDeadline(time.Time{})
		}
		return nil, tooLarge(limit)
	case err != nil:
		hangUp(w, control)
		return nil, fault.InvalidArgument.New("the body could not be read to its end; it must arrive within " +
			bodyTime.String() +
			", and after " + bodyGrace.String() + " at " + strconv.Itoa(bodyRate) + " bytes per second or more").
			WithCause(err)
	}
	_ = control.SetReadDeadline(time.Time{})
	return body, nil
}

func tooLarge(limit int64) error {
	l := strconv.FormatInt(limit, 10)
	return fault.TooLarge.New("the body is larger than the limit of "+l+" bytes", "limit", l)
}

// hangUp makes the server close the connection after the response, without waiting for what the
// client has not sent.
func hangUp(w http.ResponseWriter, control *http.ResponseController) {
	w.Header().Set("Connection", "close")
	_ = control.SetReadDeadline(time.Now())
}

// paced reads a body and ends with an error when it arrives too slowly.
type paced struct {
	from    io.Reader
	control *http.ResponseController
	began   time.Time
	got     int64
}

// Read implements io.Reader.
func (p *paced) Read(b []byte) (int, error) {
	allowed := min(bodyTime, bodyGrace+time.Duration(p.got)*time.Second/bodyRate)
	_ = p.control.SetReadDeadline(p.began.Add(allowed))
	n, err := p.from.Read(b)
	p.got += int64(n)
	return n, err
}
