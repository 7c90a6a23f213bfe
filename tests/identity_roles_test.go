package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/fault"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
	"quartet/services/identity"
	"quartet/tests/proc"
)

// methods returns all methods of the API, from the descriptors: one that is added
// is walked without anybody thinking of it.
func methods(t *testing.T) []protoreflect.MethodDescriptor {
	var out []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(f.Package()), "quartet.") {
			return true
		}
		for i := range f.Services().Len() {
			ms := f.Services().Get(i).Methods()
			for k := range ms.Len() {
				out = append(out, ms.Get(k))
			}
		}
		return true
	})
	require.Greater(t, len(out), 90)
	slices.SortFunc(out, func(a, b protoreflect.MethodDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	return out
}

func fullMethod(md protoreflect.MethodDescriptor) string {
	return "/" + string(md.Parent().FullName()) + "/" + string(md.Name())
}

// message returns a message of a type that is linked into the test.
func message(d protoreflect.MessageDescriptor) proto.Message {
	if mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		return mt.New().Interface()
	}
	return dynamicpb.NewMessage(d)
}

// ask calls any method and gives what came back: for streams, up to three
// messages within a second.
func ask(ctx context.Context, conn *grpc.ClientConn, md protoreflect.MethodDescriptor, req proto.Message) (
	[]proto.Message, error,
) {
	if !md.IsStreamingServer() && !md.IsStreamingClient() {
		reply := message(md.Output())
		err := conn.Invoke(ctx, fullMethod(md), req, reply)
		return []proto.Message{reply}, err
	}
	// What a stream has to say at once comes at once; what is silent says nothing.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, fullMethod(md))
	if err != nil {
		return nil, err
	}
	if err := s.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := s.CloseSend(); err != nil {
		return nil, err
	}
	var got []proto.Message
	for range 3 {
		m := message(md.Output())
		err := s.RecvMsg(m)
		if errors.Is(err, io.EOF) || errors.Is(err, fault.Deadline) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		got = append(got, m)
	}
	return got, nil
}

// addressed fills the fields that say about whom a request is.
func addressed(md protoreflect.MethodDescriptor, agentID string) proto.Message {
	req := message(md.Input())
	m := req.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		switch fd.Name() {
		case "agent_id", "session_id":
			m.Set(fd, protoreflect.ValueOfString(agentID))
		case "wait":
			if fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Duration" {
				m.Set(fd, protoreflect.ValueOfMessage(durationpb.New(time.Millisecond).ProtoReflect()))
			}
		}
	}
	return req
}

// TestX15_EveryMethodForEveryRole walks the table, at a process that serves the methods and at one that forwards them:
// what the table says yes to is not refused for want of a role, and everything else is, with the same words.
func TestX15_EveryMethodForEveryRole(t *testing.T) {
	proc.Long(t)
	planes, door := twoDoors(t)
	for name, h := range map[string]*house{"planes": planes, "forwarded": door} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			everyMethodForEveryRole(t, h)
		})
	}
}

func everyMethodForEveryRole(t *testing.T, h *house) {
	const nobody = "nobody" // so that what is allowed changes nothing
	var wrong []string
	conns := map[string]*grpc.ClientConn{}
	for _, role := range identity.Roles {
		token := h.minted(t, rpc.Actor{Namespace: "acme", Principal: "p", Role: role, AgentID: map[string]string{
			rpc.RoleAgent: nobody,
		}[role]})
		if role == rpc.RoleWorker {
			token = h.minted(t, rpc.Actor{
				Namespace: "acme", Principal: "worker/w", Role: role, AgentID: "w",
				RunID: "run_00000000000000000000000000",
			})
		}
		conns[role] = h.conn(t, token)
	}
	for _, md := range methods(t) {
		roles, _ := identity.Allowed(fullMethod(md))
		require.NotEmpty(t, roles, "%s is in nobody's row of services/identity/policy.go", md.FullName())
		for _, role := range identity.Roles {
			_, err := ask(soon(t), conns[role], md, addressed(md, nobody))
			e := fault.From(err)
			denied := e != nil && e.Code() == codes.PermissionDenied
			if denied == slices.Contains(roles, role) {
				wrong = append(wrong, fmt.Sprintf("%s as %s: %v", md.FullName(), role, err))
			}
			if denied && md.Parent().FullName() != "quartet.board.v1.BoardService" { // whose words are its tools'
				require.Equal(t, fault.PermissionDenied, e.Reason())
				require.Contains(t, e.Message(), "role "+role)
			}
			require.NotErrorIs(t, err, fault.Unauthenticated, "%s as %s", md.FullName(), role)
			require.NotErrorIs(t, err, fault.InternalError, "%s as %s", md.FullName(), role)
		}
	}
	require.Empty(t, wrong)
}

// TestX15_NoCallWithoutACredential walks every method without one, with bad ones
// and with one of another installation.
func TestX15_NoCallWithoutACredential(t *testing.T) {
	h := newHouse(t, nil)
	_, whole := h.key(t, &identityv1.CreateKeyRequest{Name: "x", Role: identityv1.Role_ROLE_OPERATOR})
	foreign := rpc.NewKeyring(nil, false).Mint(rpc.Actor{Namespace: "default", Principal: "p", Role: rpc.RoleAdmin})
	for name, token := range map[string]string{
		"none": "", "nonsense": "nonsense", "another installation's": foreign, "cut": whole[:len(whole)-1],
		"changed":   whole[:len(whole)-1] + "z",
		"of nobody": "qk_" + strings.Repeat("0", 26) + "_" + strings.Repeat("0", 64), "bootstrap, cut": bootstrap[1:],
		"none algorithm": "eyJhbGciOiJub25lIn0.eyJyb2xlIjoiYWRtaW4ifQ.",
	} {
		var conn *grpc.ClientConn
		for i, md := range methods(t) {
			if i%4 == 0 { // a connection with too many refusals is closed (SPEC G8.2)
				conn = h.conn(t, token)
			}
			_, err := ask(soon(t), conn, md, addressed(md, "keeper"))
			require.ErrorIs(t, err, fault.Unauthenticated, "%s with a credential that is %s", md.FullName(), name)
		}
	}
}
