package cli

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/client"
	"quartet/pkg/id"
)

// connect prepares the connection that the flags name.
func (ss *session) connect() (*grpc.ClientConn, error) {
	if err := ss.settings.Load(""); err != nil {
		return nil, usage(err.Error())
	}
	if ss.output != formTable && ss.output != formJSON {
		return nil, usage("-o " + ss.output + " is unknown; use table or json")
	}
	if ss.bootstrap {
		var err error
		if ss.token, err = ss.bootstrapToken(); err != nil {
			return nil, err
		}
	}
	opts, err := ss.tls.options()
	if err != nil {
		return nil, usage(err.Error())
	}
	conn, err := client.Connect(ss.address, append(opts, client.WithToken(ss.token))...)
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
