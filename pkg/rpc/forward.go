package rpc

import (
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"quartet/pkg/fault"
)

// forwardedKey marks a call that was forwarded once, so that two processes that are
// configured with each other's address do not forward it without end.
const forwardedKey = "quartet-forwarded"

// forward forwards calls of services that other processes serve, so that a client needs the
// address of one process. The call was authenticated before; it is forwarded with the
// caller's credential, and its messages are copied as bytes.
func (s *server) forward(_ any, in grpc.ServerStream) error {
	ctx := in.Context()
	method, _ := grpc.MethodFromServerStream(in)
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	md, _ := metadata.FromIncomingContext(ctx)
	conn := s.cfg.Elsewhere(service)
	switch {
	case conn == nil:
		return fault.Unimplemented.New("this process does not serve "+service+", and addresses does not say who does",
			"service", service)
	case len(md.Get(forwardedKey)) > 0:
		return fault.Unimplemented.New("this process does not serve "+service+
			" but another one sent the call here; fix its addresses", "service", service)
	}
	err := relay(metadata.NewOutgoingContext(ctx, forwardedMetadata(md)), conn, method, in)
	var notBegun *beginError
	if errors.As(err, &notBegun) {
		err = notBegun.error
	}
	return nameService(service, err)
}

// nameService names the service in the error of a connection, because the caller knows only this
// process. It returns errors of the service itself unchanged.
func nameService(service string, err error) error {
	if st, ok := status.FromError(err); ok && st.Code() == codes.Unavailable && len(st.Details()) == 0 {
		return fault.NotReady.New(service+" cannot be reached from here at the moment: "+st.Message(), "service",
			service)
	}
	return err
}

// forwardedMetadata returns the caller's metadata without the entries of its connection, marked as forwarded.
func forwardedMetadata(md metadata.MD) metadata.MD {
	out := metadata.MD{forwardedKey: {"1"}}
	for k, v := range md {
		if strings.HasPrefix(k, ":") || strings.HasPrefix(k, "grpc-") || k == "content-type" || k == "user-agent" ||
			k == "te" {
			continue
		}
		out[k] = v
	}
	return out
}

// copyMessages copies messages until source ends, and then returns nil, or until receiving or sending fails. It returns
// that error as it is.
func copyMessages(to interface{ SendMsg(m any) error }, source interface{ RecvMsg(m any) error }) error {
	for {
		var m raw
		if err := source.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		err := to.SendMsg(&m)
		m.bytes.Free()
		if err != nil {
			return err
		}
	}
}

// raw is a message that this process does not decode. Only relay receives such messages, and it sends each one to
// another process with the caller's credential (see serverStream.RecvMsg).
type raw struct{ bytes mem.BufferSlice }

// rawCodec passes raw messages through, and is protobuf for all others.
type rawCodec struct{}

// Marshal implements encoding.CodecV2. gRPC frees what it returns, so a raw message gets another reference.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*raw); ok {
		m.bytes.Ref()
		return m.bytes, nil
	}
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

// Unmarshal implements encoding.CodecV2. gRPC frees data after it, so a raw message gets another reference.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*raw); ok {
		data.Ref()
		m.bytes = data
		return nil
	}
	return encoding.GetCodecV2(proto.Name).Unmarshal(data, v)
}

// Name is protobuf's, which is what is on the wire.
func (rawCodec) Name() string { return proto.Name }
