package client

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/fault"
	"quartet/pkg/localtoken"
)

// LocalCredential returns the credential that Dial uses without WithToken, for programs that connect by
// other means. It reads the token file of the server at addr for every call, so that a program can
// be started before the server. It adds no credential if there is no such file, if addr is not a loopback
// address, or if the call has a credential already. The caller must connect to addr itself and not to a
// proxy, which would receive the token.
func LocalCredential(addr string) credentials.PerRPCCredentials {
	return &localCredential{addr: strings.TrimPrefix(strings.TrimPrefix(addr, "passthrough:///"), "dns:///")}
}

// restartGrace is for how long a server whose token file has gone is taken for one that restarts. A server of this
// machine writes its file again within seconds.
const restartGrace = 30 * time.Second

// localCredential is the local token of the server at an address.
type localCredential struct {
	addr string
	seen atomic.Int64 // when the token was last read, in Unix nanoseconds; 0: never
}

// GetRequestMetadata implements credentials.PerRPCCredentials. It returns nothing for a call that has a credential,
// and if there is no token. If there was one until a moment ago, the server restarts, and the result is NOT_READY:
// callers repeat that, but not a call that is refused for want of a credential. It returns UNAUTHENTICATED if the
// token file cannot be used.
func (l *localCredential) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get("authorization")) > 0 {
		return nil, nil
	}
	token, err := localtoken.Read(l.addr)
	if err != nil {
		return nil, fault.Unauthenticated.New(err.Error())
	}
	if token == "" {
		if seen := l.seen.Load(); seen != 0 && time.Since(time.Unix(0, seen)) < restartGrace {
			return nil, fault.NotReady.New("the server at " + l.addr + " restarts: its token file is not there yet")
		}
		return nil, nil
	}
	l.seen.Store(time.Now().UnixNano())
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. The peer is this machine.
func (*localCredential) RequireTransportSecurity() bool { return false }

// defaultAddr is where `quartet dev` serves gRPC unless its flags say otherwise.
const defaultAddr = "127.0.0.1:7481"

// StartCommand returns the command line that starts a server of this user at a gRPC address, for messages
// to people and models. It is "" if addr is not an address of this machine only.
func StartCommand(addr string) string {
	if host, port, err := net.SplitHostPort(addr); err == nil && strings.EqualFold(host, "localhost") {
		addr = net.JoinHostPort("127.0.0.1", port) // as Connect does
	}
	at, err := netip.ParseAddrPort(addr)
	switch {
	case addr == defaultAddr:
		return "quartet dev"
	case err != nil || !at.Addr().IsLoopback() || at.Port() == 0:
		return ""
	}
	return "quartet dev --grpc-addr " + at.String()
}
