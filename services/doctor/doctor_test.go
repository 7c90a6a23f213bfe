package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	"quartet/pkg/natsd"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// odd is a server with a clock and a version of its own.
type odd struct {
	identityv1.UnimplementedIdentityServiceServer
	ahead time.Duration
	err   error
}

func (o *odd) WhoAmI(context.Context, *identityv1.WhoAmIRequest) (*identityv1.WhoAmIResponse, error) {
	return &identityv1.WhoAmIResponse{
		Namespace: "acme", Principal: "ci", Role: identityv1.Role_ROLE_OPERATOR,
		ServerTime: timestamppb.New(time.Now().Add(o.ahead)), ServerVersion: "v2",
	}, o.err
}

func (o *odd) serve(t *testing.T, status grpc_health_v1.HealthCheckResponse_ServingStatus) grpc.ClientConnInterface {
	srv, probe := grpc.NewServer(), health.NewServer()
	probe.SetServingStatus("", status)
	grpc_health_v1.RegisterHealthServer(srv, probe)
	identityv1.RegisterIdentityServiceServer(srv, o)
	lis := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(lis) // ends with the server
	}()
	conn := must.Value(grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		<-done
	})
	return conn
}

func statuses(found []Finding) map[string]string {
	out := map[string]string{}
	for _, f := range found {
		out[f.Check] = f.Status
	}
	return out
}

func TestWhatAServerSaysOfItself(t *testing.T) {
	up := grpc_health_v1.HealthCheckResponse_SERVING
	for name, c := range map[string]struct {
		server  *odd
		status  grpc_health_v1.HealthCheckResponse_ServingStatus
		version string
		token   bool
		check   string
		want    string
	}{
		"all is well":        {&odd{}, up, "v2", true, "clock", OK},
		"a second off":       {&odd{ahead: time.Second}, up, "v2", true, "clock", OK},
		"ten seconds ahead":  {&odd{ahead: 10 * time.Second}, up, "v2", true, "clock", Warning},
		"ten seconds behind": {&odd{ahead: -10 * time.Second}, up, "v2", true, "clock", Warning},
		"an hour ahead":      {&odd{ahead: time.Hour}, up, "v2", true, "clock", Problem},
		"the same release":   {&odd{}, up, "v2", true, "version", OK},
		"another release":    {&odd{}, up, "v1", true, "version", Warning},
		"not ready":          {&odd{}, grpc_health_v1.HealthCheckResponse_NOT_SERVING, "v2", true, "ready", Problem},
		"a wrong key":        {&odd{err: fault.Unauthenticated.New("no")}, up, "v2", true, "credential", Problem},
		"no key":             {&odd{err: fault.Unauthenticated.New("no")}, up, "v2", false, "credential", Problem},
		"no identity":        {&odd{err: fault.NotReady.New("no")}, up, "v2", false, "credential", Problem},
	} {
		t.Run(name, func(t *testing.T) {
			r := &report{}
			require.True(t, r.client(t.Context(), Client{
				Address: "x", Conn: c.server.serve(t, c.status), Token: c.token, Version: c.version, Now: time.Now,
			}))
			require.Equal(t, c.want, statuses(r.found)[c.check], r.found)
			for _, f := range r.found {
				require.Equal(t, f.Status == Warning || f.Status == Problem, f.Mend != "",
					"what is wrong can be mended: %v", f)
			}
		})
	}
}

func TestWhatIsOnTheDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := Server{DataDir: dir, KeyFile: filepath.Join(dir, "key")}
	look := func() map[string]string {
		r := &report{}
		r.dataDir(s)
		r.keyFile(s)
		return statuses(r.found)
	}
	require.Equal(t, map[string]string{"data-dir": Skipped, "disk": Skipped, "key-file": Skipped}, look())
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(s.KeyFile, nil, 0o600))
	got := look()
	require.Equal(t, []string{OK, OK}, []string{got["data-dir"], got["key-file"]})
	require.NotEmpty(t, got["fsync"])
	require.Len(t, must.Value(os.ReadDir(dir))(t), 1, "nothing is left behind")
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Chmod(s.KeyFile, 0o640))
	got = look()
	require.Equal(t, []string{Warning, Problem}, []string{got["data-dir"], got["key-file"]})
	s.DataDir = s.KeyFile
	require.Equal(t, Problem, look()["data-dir"], "a file")
	require.Error(t, must.Err(syncedWrite(filepath.Join(dir, "nothing"))))
}

// TestFilesForNATS says ok only of a file that could be opened. That of the nkey is a socket, which can never be.
func TestFilesForNATS(t *testing.T) {
	dir := t.TempDir()
	n := natsd.Remote{
		PasswordFile: filepath.Join(dir, "password"), CredsFile: filepath.Join(dir, "creds"),
		NKeyFile: filepath.Join(dir, "nkey"),
	}
	require.NoError(t, os.WriteFile(n.PasswordFile, []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(n.CredsFile, []byte("x"), 0o640))
	socket := must.Value(net.Listen("unix", n.NKeyFile))(t)
	defer func() { _ = socket.Close() }()
	require.NoError(t, os.Chmod(n.NKeyFile, 0o600))
	r := &report{}
	r.brokerFiles(n)
	require.Equal(t, map[string]string{"nats-password-file": OK, "nats-creds-file": Problem, "nats-nkey-file": Problem},
		statuses(r.found))
}

func TestArchive(t *testing.T) {
	for want, a := range map[string]Archive{
		"":      {},
		OK:      {Name: "s3://b", Check: func(context.Context) error { return nil }},
		Warning: {Name: "s3://b", Plain: true, Check: func(context.Context) error { return nil }},
		Problem: {Name: "s3://b", Check: func(context.Context) error {
			return errors.New("archive s3://b: write: refused; let it")
		}},
	} {
		r := &report{}
		r.archive(t.Context(), a)
		require.Equal(t, want, statuses(r.found)["archive"])
		if want == Problem {
			require.Equal(t, []string{"archive s3://b: write: refused", "let it"},
				[]string{r.found[0].Message, r.found[0].Mend})
		}
	}
}
