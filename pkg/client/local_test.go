package client_test

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/client"
	"quartet/pkg/fault"
	"quartet/pkg/localtoken"
	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/tests/dev"
)

// Clients without a token have that of the server, also if they are older than it; others have their own.
func TestI1_ClientsFindTheToken(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	s := dev.Start(t)
	who := func(c *client.Client, more ...string) (string, error) {
		ctx := metadata.AppendToOutgoingContext(dev.Within(t), more...)
		me, err := identityv1.NewIdentityServiceClient(c.Conn()).WhoAmI(ctx, &identityv1.WhoAmIRequest{},
			grpc.WaitForReady(true))
		return me.GetPrincipal(), err
	}
	dial := func(addr string, opts ...client.Option) *client.Client {
		c := must.Value(client.Dial(addr, opts...))(t)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	_, port, err := net.SplitHostPort(s.Cfg.GRPCAddr)
	require.NoError(t, err)
	for _, addr := range []string{s.Cfg.GRPCAddr, "localhost:" + port, "LocalHost:" + port, "passthrough:///" +
		s.Cfg.GRPCAddr, "dns:///" + s.Cfg.GRPCAddr} {
		principal := must.Value(who(dial(addr)))(t, addr)
		require.Equal(t, "local", principal, addr)
	}
	must.Refuse(who(dial(s.Cfg.GRPCAddr, client.WithToken("qlt_wrong"))))(t, fault.Unauthenticated)
	_, err = who(s.Client, "authorization", "Bearer qlt_wrong")
	require.ErrorIs(t, err, fault.Unauthenticated, "a call's own credential is the only one")
	must.Refuse(identityv1.NewIdentityServiceClient(s.Conn()).WhoAmI(client.As(dev.Within(t), "qlt_wrong"),
		&identityv1.WhoAmIRequest{}))(t, fault.Unauthenticated)

	s.Down()
	older := dial(s.Cfg.GRPCAddr)
	s.Up()
	for _, c := range []*client.Client{older, s.Client} {
		require.Equal(t, "local", must.Value(who(c))(t))
	}

	// A server that restarts has no token file for a moment.
	token := localtoken.Path(s.Cfg.GRPCAddr)
	require.NoError(t, os.Rename(token, token+".away"))
	_, err = who(older)
	require.ErrorIs(t, err, fault.NotReady)
	require.NoError(t, os.Rename(token+".away", token))
	_, err = who(older)
	require.NoError(t, err)

	t.Setenv("XDG_STATE_HOME", t.TempDir()) // another user's
	must.Refuse(who(dial(s.Cfg.GRPCAddr)))(t, fault.Unauthenticated)
}

// The command that a message names starts a server where the client looks for one.
func TestStartCommand(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:7481": "quartet dev", "localhost:7481": "quartet dev",
		"127.0.0.1:19481": "quartet dev --grpc-addr 127.0.0.1:19481", "LocalHost:19481": "quartet dev --grpc-addr " +
			"127.0.0.1:19481",
		"[::1]:7481": "quartet dev --grpc-addr [::1]:7481", "10.0.0.1:7481": "", "quartet.example.com:443": "",
		"127.0.0.1:0": "", "": "",
	} {
		require.Equal(t, want, client.StartCommand(addr), addr)
	}
}
