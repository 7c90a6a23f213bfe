package gateway

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	boardv1 "quartet/pkg/pb/quartet/board/v1"
)

// walSuffix ends the file name of a log.
const walSuffix = ".wal.jsonl"

// streamWAL serves GET /v1/sessions/{session_id}/wal/{wal_name}.wal.jsonl: the log of a board
// as a file (SPEC B1). With ?after_wal_seq=N it begins after that line, and with ?follow=true
// it continues with new lines until the board has ended. An error after the first line cuts
// the connection off.
func (g *Service) streamWAL(w http.ResponseWriter, r *http.Request) {
	name, isFile := strings.CutSuffix(r.PathValue("file"), walSuffix)
	if !isFile {
		unrouted(w, r, http.StatusNotFound)
		return
	}
	after, follow, err := walQuery(r)
	if err != nil {
		refuse(w, r, err)
		return
	}
	plane, err := g.conn("board")
	if err != nil {
		refuse(w, r, err)
		return
	}
	next, err := walReader(r, plane, &boardv1.FollowWalRequest{
		SessionId: r.PathValue("session_id"), WalName: name,
		AfterWalSeq: after,
	}, follow)
	if err != nil {
		refuse(w, r, err)
		return
	}
	lines, err := next()
	if err != nil && !errors.Is(err, io.EOF) {
		refuse(w, r, err)
		return
	}
	out := &httpSink{w: w, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold lines back
	w.WriteHeader(http.StatusOK)
	for ; r.Method != http.MethodHead; lines, err = next() {
		if len(lines) > 0 && out.write(lines) != nil || out.Flush() != nil {
			return
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			// A file has no place for an error, but the client sees that it is incomplete.
			panic(http.ErrAbortHandler)
		}
	}
}

// walQuery reads the parameters of streamWAL, and refuses others.
func walQuery(r *http.Request) (after int64, follow bool, err error) {
	for name, values := range r.URL.Query() {
		value := values[len(values)-1]
		switch name {
		case "after_wal_seq", "afterWalSeq":
			if after, err = strconv.ParseInt(value, 10, 64); err != nil {
				return 0, false, fault.Invalid(name, value, "must be a number")
			}
		case "follow":
			if follow, err = strconv.ParseBool(value); err != nil {
				return 0, false, fault.Invalid(name, value, "must be true or false")
			}
		default:
			return 0, false, unknownParameter(name)
		}
	}
	return after, follow, nil
}

// walReader returns a function that returns complete lines of the log at each call, as many as
// there are by then and possibly none, and io.EOF after the last. With follow set it waits for
// new lines until the board has ended.
func walReader(r *http.Request, plane grpc.ClientConnInterface, req *boardv1.FollowWalRequest, follow bool) (
	next func() ([]byte, error), err error,
) {
	client := boardv1.NewBoardServiceClient(plane)
	if follow {
		stream, err := client.FollowWal(r.Context(), req)
		if err != nil {
			return nil, err
		}
		if _, err := stream.Header(); err != nil { // refused before the header is written
			return nil, err
		}
		begun := false
		return func() ([]byte, error) {
			if !begun { // nothing, so that the header is sent before the first line arrives
				begun = true
				return nil, nil
			}
			m, err := stream.Recv()
			return m.GetLines(), err
		}, nil
	}
	ended := false
	return func() ([]byte, error) {
		if ended {
			return nil, io.EOF
		}
		m, err := client.ReadWal(r.Context(), &boardv1.ReadWalRequest{
			SessionId: req.GetSessionId(),
			WalName:   req.GetWalName(), AfterWalSeq: req.GetAfterWalSeq(), Limit: 2000,
		})
		if err != nil {
			return nil, err
		}
		ended = !m.GetTruncated()
		req.AfterWalSeq = m.GetLastWalSeq()
		return m.GetLines(), nil
	}, nil
}
