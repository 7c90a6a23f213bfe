package rpc

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"quartet/pkg/connlimit"
	"quartet/pkg/fault"
)

// edge uses TLS for connections over the network and none for the pipes within the process,
// because one server listens on both.
type edge struct {
	credentials.TransportCredentials
	memory credentials.TransportCredentials
}

func newEdge(network credentials.TransportCredentials) credentials.TransportCredentials {
	return edge{network, insecure.NewCredentials()}
}

// ServerHandshake implements credentials.TransportCredentials. The frames of a connection from the listener that Bound
// returned are counted.
func (e edge) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if conn.LocalAddr().Network() == "bufconn" {
		return e.memory.ServerHandshake(conn)
	}
	secured, info, err := e.TransportCredentials.ServerHandshake(conn)
	if limited := connlimit.Of(conn.RemoteAddr()); limited != nil && err == nil {
		secured = &framed{secured, connlimit.NewFrames(limited)}
	}
	return secured, info, err
}

// framed is a connection whose frames are counted.
type framed struct {
	net.Conn
	frames *connlimit.Frames
}

// Read implements net.Conn.
func (f *framed) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	f.frames.Read(p[:n])
	return n, err
}

// Clone implements credentials.TransportCredentials.
func (e edge) Clone() credentials.TransportCredentials {
	return newEdge(e.TransportCredentials.Clone())
}

// requireServiceCertificate refuses a service's credential that arrived over the network without a certificate
// of this installation, so that a leaked token alone is worthless.
func requireServiceCertificate(ctx context.Context) error {
	if local(ctx) {
		return nil // a call within the process; the peer in ctx may be that of the network call that caused it
	}
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil || p.Addr.Network() == "bufconn" {
		return nil // within the process
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		return nil
	}
	return fault.Unauthenticated.New("a service's credential is good with a service's certificate only; give its " +
		"process tls-cert-file and tls-key-file")
}

// local reports whether ctx is that of a call within the process.
func local(ctx context.Context) bool {
	switch grpc.ServerTransportStreamFromContext(ctx).(type) {
	case *localStream, *pipe:
		return true
	}
	return false
}
