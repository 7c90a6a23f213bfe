package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/id"
	"quartet/pkg/rpc"
)

// answerMax is how large an answer may be: a page of 500 records with plans.
const answerMax = 16 << 20

// bearer is the credential of every call. Plain text is allowed because the
// default is loopback; beyond it a tunnel or a proxy is expected.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if b == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return false }

func (ss *session) connect() (*grpc.ClientConn, error) {
	if err := ss.settings.Load(""); err != nil {
		return nil, usage(err.Error())
	}
	if ss.output != formTable && ss.output != formJSON {
		return nil, usage("-o " + ss.output + " is unknown; use table or json")
	}
	conn, err := grpc.NewClient(ss.address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(bearer(strings.TrimSpace(ss.token))),
		grpc.WithUnaryInterceptor(rpc.FaultsUnary),
		grpc.WithStreamInterceptor(rpc.FaultsStream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMax)),
	)
	if err != nil {
		return nil, usage("--address " + ss.address + ": " + err.Error())
	}
	return conn, nil
}

// calls makes a command's RunE out of a function that has a connection.
func (ss *session) calls(do func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		conn, err := ss.connect()
		if err != nil {
			return err
		}
		defer conn.Close()
		return do(cmd, conn, args)
	}
}

// mutates gives a command --request-id. Without one it makes one up, so that
// the error message of an unknown outcome has something to offer.
func (ss *session) mutates(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&ss.requestID, "request-id", "", "Id of this request: repeating it does nothing twice (default: a new one)")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if ss.requestID == "" {
			ss.requestID = id.New().New("cli_")
		}
		return run(cmd, args)
	}
	return cmd
}

// show writes a response as JSON, or as table does.
func (ss *session) show(cmd *cobra.Command, m proto.Message, table func(p *printer)) error {
	p := newPrinter(cmd.OutOrStdout())
	if ss.output == formJSON {
		p.json(m)
	} else {
		table(p)
	}
	return p.err
}
