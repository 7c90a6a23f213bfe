package tests

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"quartet/pkg/must"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
)

// What runs elsewhere is tested by the same bodies: `make compose-test` brings it
// up and gives its addresses. $QUARTET_TOKEN is an admin's.
var (
	deployedGRPC = flag.String("deployed", "", "run the bodies that run over each deployment against the server "+
		"whose gRPC is here, and nothing else")
	deployedHTTP = flag.String("deployed-http", "", "the REST address of -deployed, as https://host:port; "+
		"$SSL_CERT_FILE names who signed its certificate")
)

// transport is TLS if the deployment speaks it; $SSL_CERT_FILE says who signed.
func transport() credentials.TransportCredentials {
	if strings.HasPrefix(*deployedHTTP, "https://") {
		return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	return insecure.NewCredentials()
}

// bearing sends a token with every call that brings none.
func bearing(token string) []grpc.DialOption {
	with := func(ctx context.Context) context.Context {
		if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get("authorization")) > 0 {
			return ctx
		}
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(transport()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			return rpc.FaultsUnary(with(ctx), method, req, reply, cc, invoke, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return rpc.FaultsStream(with(ctx), d, cc, method, open, opts...)
		}),
	}
}

func keyOf(t *testing.T, ctx context.Context, root grpc.ClientConnInterface, role identityv1.Role,
	namespace string,
) string {
	return must.Value(identityv1.NewIdentityServiceClient(root).CreateKey(ctx, &identityv1.CreateKeyRequest{
		Name: "test", Role: role, Namespace: namespace,
	}))(t).GetSecret()
}

// deployed returns a namespace of its own in what runs elsewhere, with a worker of its
// own that runs here: bodies share nothing but the servers.
func deployed(t *testing.T) *system {
	bin := binary(t) // which may take longer than the rest is given
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	root := must.Value(grpc.NewClient(*deployedGRPC, bearing(os.Getenv("QUARTET_TOKEN"))...))(t)
	t.Cleanup(func() { _ = root.Close() })
	namespace := "t-" + strings.ToLower(rand.Text())
	key := func(role identityv1.Role) string { return keyOf(t, ctx, root, role, namespace) }
	admin := key(identityv1.Role_ROLE_ADMIN)
	s := &system{http: *deployedHTTP, token: admin}
	s.dial = func(t *testing.T, _ string, opts ...grpc.DialOption) *grpc.ClientConn {
		conn := must.Value(grpc.NewClient(*deployedGRPC, append(bearing(admin), opts...)...))(t)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	s.more = func(t *testing.T, services ...string) { t.Fatalf("another %v is not started here", services) }

	dir := t.TempDir()
	log := must.Value(os.Create(filepath.Join(dir, "worker.log")))(t)
	worker := exec.Command(bin, "worker", "--root", dir, "--state-dir", dir, "--address", *deployedGRPC)
	worker.Env = append(os.Environ(), "QUARTET_TOKEN="+key(identityv1.Role_ROLE_WORKER),
		fmt.Sprintf("QUARTET_TLS=%t", strings.HasPrefix(*deployedHTTP, "https://")))
	worker.Stdout, worker.Stderr = log, log
	require.NoError(t, worker.Start())
	t.Cleanup(func() {
		_ = worker.Process.Signal(os.Interrupt)
		_ = worker.Wait()
		_ = log.Close()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("the worker said:\n%s", said)
		}
	})
	require.Eventually(t, func() bool {
		said, err := os.ReadFile(log.Name())
		return err == nil && strings.Contains(string(said), "executes commands")
	}, time.Minute, 10*time.Millisecond)
	return s.open(t)
}
