package rpc

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	// methodBytes is how much of a connection tells HTTP/1 from HTTP/2.
	methodBytes = 4
	// lingerTerm and lingerBytes bound what is read of a request that is not served, so that its client reads the
	// answer: a connection that is closed with unread bytes is reset.
	lingerTerm, lingerBytes = 500 * time.Millisecond, 64 << 10
)

// http1Methods are the beginnings of requests of HTTP/1. A connection of HTTP/2, and so of gRPC, begins with "PRI ".
var http1Methods = [][]byte{
	[]byte("GET "), []byte("PUT "), []byte("POST"), []byte("HEAD"), []byte("DELE"), []byte("PATC"), []byte("OPTI"),
}

// errHTTP1 is the error of a connection that is none of gRPC.
var errHTTP1 = errors.New("a client of HTTP/1 at the address of gRPC")

// misdirected is the body of the answer to it.
const misdirected = `{"error":{"code":421,"status":"INVALID_ARGUMENT","reason":"INVALID_ARGUMENT","message":"this is the gRPC address of Quartet; REST is served at http-addr, by default on port 7480"}}` + "\n"

// plain is the transport of plain text. It tells a client of HTTP/1, such as curl, that REST has another address,
// instead of sending it frames that it cannot read.
type plain struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials. gRPC bounds it in time: the deadline of conn is set.
func (p plain) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	begin := make([]byte, methodBytes)
	if _, err := io.ReadFull(conn, begin); err != nil {
		return nil, nil, err
	}
	for _, method := range http1Methods {
		if bytes.Equal(begin, method) {
			answerHTTP1(conn)
			return nil, nil, errHTTP1
		}
	}
	return p.TransportCredentials.ServerHandshake(&peeked{Conn: conn, begin: begin})
}

// Clone implements credentials.TransportCredentials.
func (p plain) Clone() credentials.TransportCredentials {
	return plain{p.TransportCredentials.Clone()}
}

// answerHTTP1 answers a request of HTTP/1. The client may have left, so it ignores errors.
func answerHTTP1(conn net.Conn) {
	_, _ = io.WriteString(conn, "HTTP/1.1 421 Misdirected Request\r\nContent-Type: application/json\r\nConnection: "+
		"close\r\nContent-Length: "+
		strconv.Itoa(len(misdirected))+"\r\n\r\n"+misdirected)
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(lingerTerm))
	_, _ = io.CopyN(io.Discard, conn, lingerBytes)
}

// peeked is a connection of which the beginning was read. One goroutine may read from it.
type peeked struct {
	net.Conn
	begin []byte
}

// Read implements net.Conn.
func (b *peeked) Read(p []byte) (int, error) {
	if len(b.begin) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.begin)
	b.begin = b.begin[n:]
	return n, nil
}
