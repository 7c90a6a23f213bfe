package attack

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Stranger is an attacker without a credential: with Connections at once, and ten more each second.
type Stranger struct {
	GRPC, HTTP  string
	Connections int
	// Only is the one kind of connection that it makes, an index of Kinds and one more; 0: each in turn.
	Only int
}

// Kinds are what a stranger does on a connection.
var Kinds = []string{
	"gRPC: nothing", "HTTP: nothing",
	"gRPC: 20 000 streams", "HTTP: a body that does not arrive",
	"gRPC: half a message", "HTTP: 4 MiB of brackets",
	"gRPC: halves of four health checks", "HTTP: a delivery to a guessed trigger",
	"gRPC: 10 000 guessed keys", "HTTP: a header without end",
	"gRPC: 10 000 settings", "HTTP: 1 000 requests for /metrics",
}

const (
	getAgent    = "/quartet.agent.v1.AgentService/GetAgent"
	healthCheck = "/grpc.health.v1.Health/Check"
)

// attack attacks until the process is killed.
func (s *Stranger) attack() {
	for n := range s.Connections {
		go s.connect(n)
	}
	n := 0
	for range time.Tick(time.Second / 10) {
		go s.connect(n)
		n++
	}
}

// sendTerm is how long a connection may take what a stranger sends.
const sendTerm = 20 * time.Second

// connect does one of the things that once cost a server much, on one connection, until the server closes it.
func (s *Stranger) connect(n int) {
	if s.Only > 0 {
		n = s.Only - 1
	}
	to := s.GRPC
	if n%2 == 1 {
		to = s.HTTP
	}
	w := dialWire(Source, to)
	if w == nil {
		return
	}
	defer w.Close()
	go w.drain()
	if to == s.HTTP {
		w.http(n / 2 % 6)
	} else {
		w.preface()
		w.grpc(n / 2 % 6)
	}
	// As long as the server lets it; the attack ends with the process.
	_ = w.SetReadDeadline(time.Time{})
	buf := make([]byte, 1)
	for {
		if _, err := w.Write(buf[:0]); err != nil {
			return
		}
		if _, err := w.Read(buf); err != nil {
			return
		}
	}
}

// http makes one of six kinds of requests.
func (w *wire) http(kind int) {
	post := func(path, token, body string, length int) {
		w.frames = append(w.frames, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "+
			"%s\r\nContent-Length: %d\r\n\r\n%s", path, token, length, body)...)
		w.send(sendTerm)
	}
	switch kind {
	case 0: // nothing
	case 1:
		post("/v1/agents", "guessed", "abc", 200_000)
	case 2:
		post("/v1/agents", "guessed", strings.Repeat("[", 4<<20), 4<<20)
	case 3:
		post("/v1/triggers/qtr_guessed", "", strings.Repeat("x", 250<<10), 256<<10)
	case 4: // a header without end
		for range 1000 {
			w.frames = append(w.frames, "GET / HTTP/1.1\r\nX: "+strings.Repeat("x", 1000)+"\r\n"...)
		}
		w.send(sendTerm)
	case 5: // what costs much and needs no credential
		for range 1000 {
			w.frames = append(w.frames, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"...)
		}
		w.send(sendTerm)
	}
}

// grpc makes one of six kinds of calls.
func (w *wire) grpc(kind int) {
	switch kind {
	case 0: // nothing
	case 1: // streams
		for range 20_000 {
			w.call(getAgent)
		}
		w.send(sendTerm)
	case 2: // half a message
		w.part(w.call(getAgent), 4<<20, 2<<20)
		w.send(sendTerm)
	case 3: // half a message where no credential is needed
		for range 4 {
			w.part(w.call(healthCheck), 4<<20, 1<<20)
		}
		w.send(sendTerm)
	case 4: // guesses
		for i := range 10_000 {
			w.call(getAgent, "authorization", "Bearer qk_guess"+strconv.Itoa(i))
		}
		w.send(sendTerm)
	case 5: // frames that are of no call
		for range 10_000 {
			w.frame(frameSettings, 0, 0, nil)
		}
		w.send(sendTerm)
	}
}
