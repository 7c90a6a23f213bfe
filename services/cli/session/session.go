// Package session holds what all commands of one invocation share: the server's
// address, the credential, TLS, the form of the output, the request id, and which
// records the arguments name.
//
// Owns: the flags --address, --token, --tls…, -o and --request-id; the file of contexts,
// servers under names, which only its user may change; which arguments and flags name
// which records, and when the beginning of an id suffices.
// Never does: change a record, or read more than a bounded number of them; store a credential.
// Reads: those flags, QUARTET_ADDRESS, QUARTET_TOKEN, QUARTET_TOKEN_FILE, QUARTET_TLS…, and
// contexts.yaml in $XDG_CONFIG_HOME/quartet, or else in ~/.config/quartet; for the beginning of
// an id, lists of records.
// Emits: connections; responses as tables or JSON; complete ids; lines on stderr that say which id
// was meant; completions.
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"quartet/pkg/certs"
	"quartet/pkg/client"
	"quartet/pkg/conf"
	"quartet/pkg/id"
	"quartet/services/cli/exit"
	"quartet/services/cli/input"
	"quartet/services/cli/output"
)

// DefaultAddress is where `quartet dev` serves gRPC.
const DefaultAddress = "127.0.0.1:7481"

// The values of --output.
const (
	formTable = "table"
	formJSON  = "json"
)

// Session is one invocation of the command line. Its exported fields are complete once cobra has parsed the flags,
// and its settings, such as the address, once Load has read them; a command is run at most once per session.
type Session struct {
	// RequestID names the mutation of this invocation. It is never empty in a
	// command made by Mutation.
	RequestID string
	// Now returns the time from which ages are counted.
	Now func() time.Time
	// Credential, if set, is called before a connection is made. A token that it
	// returns replaces --token; "" keeps that.
	Credential func() (token string, err error)

	address  string
	token    string
	output   string
	utc      bool
	tls      bool
	tlsFiles certs.Files
	settings *conf.Set
	// contextToken is the file of the credential, if that is the one of a context.
	contextToken string
}

// New returns a session and declares its flags. now may be nil for the clock of
// the machine.
func New(flags *pflag.FlagSet, now func() time.Time) *Session {
	s := &Session{Now: now, settings: conf.New(flags)}
	if s.Now == nil {
		s.Now = time.Now
	}
	s.settings.String(&s.address, "address", DefaultAddress, "The server's gRPC address, host:port ($QUARTET_ADDRESS)")
	s.settings.Secret(&s.token, "token", "Credential ($QUARTET_TOKEN, or a file in $QUARTET_TOKEN_FILE); default: "+
		"that of the server of this user at a loopback address")
	s.settings.Bool(&s.tls, "tls", false, "Connect with TLS; implied by each of the next three flags ($QUARTET_TLS)")
	s.settings.String(&s.tlsFiles.CA, "tls-ca-file", "", "Certificates of the authorities that may sign the server's "+
		"certificate (PEM); empty: the system's")
	s.settings.String(&s.tlsFiles.Cert, "tls-cert-file", "", "Client certificate to present to the server (PEM)")
	s.settings.String(&s.tlsFiles.Key, "tls-key-file", "", "Private key of the client certificate (PEM)")
	flags.StringVarP(&s.output, "output", "o", formTable, "Form of the output: table or json")
	flags.BoolVar(&s.utc, "utc", false, "Write times in UTC, and read those without a zone so, instead of in the "+
		"local time zone")
	return s
}

// Know makes the environment variables of the servers' settings known, so that a client does not refuse
// them as misspelt where they are set beside its own.
func (s *Session) Know(servers *pflag.FlagSet) {
	servers.VisitAll(func(f *pflag.Flag) {
		s.settings.Know(conf.EnvName(f.Name), conf.EnvName(f.Name)+"_FILE")
	})
}

// Address returns the server's address. The settings must have been loaded, by Load or for a connection.
func (s *Session) Address() string { return s.address }

// SecretFiles returns the files with the credential and the private key of this client. The settings must have been
// loaded.
func (s *Session) SecretFiles() []string {
	files := []string{s.tlsFiles.Key, s.contextToken}
	return slices.DeleteFunc(slices.AppendSeq(files, maps.Values(s.settings.SecretFiles())), func(path string) bool {
		return path == ""
	})
}

// HasToken reports whether a credential is used.
func (s *Session) HasToken() bool { return s.token != "" }

// UsesTLS reports whether connections use TLS.
func (s *Session) UsesTLS() bool { return s.tls || s.tlsFiles != (certs.Files{}) }

// JSON reports whether the output is JSON instead of tables.
func (s *Session) JSON() bool { return s.output == formJSON }

// Load reads the settings that no flag has given: from the environment, else from the chosen context. Commands that
// connect do so themselves.
func (s *Session) Load() error {
	if err := s.settings.Load(""); err != nil {
		return exit.UsageError(err.Error())
	}
	if err := s.applyContext(); err != nil {
		return exit.UsageError(err.Error())
	}
	return s.checkAddress()
}

// WithConnection calls do with a connection to the server and closes it.
func (s *Session) WithConnection(do func(conn *grpc.ClientConn) error) error {
	conn, err := s.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(conn)
}

// connect prepares the connection that the flags name. It does not wait for the
// server.
func (s *Session) connect() (*grpc.ClientConn, error) {
	if err := s.Load(); err != nil {
		return nil, err
	}
	if s.output != formTable && s.output != formJSON {
		return nil, exit.UsageError("-o " + s.output + " is unknown; use table or json")
	}
	if s.Credential != nil {
		token, err := s.Credential()
		if err != nil {
			return nil, err
		}
		if token != "" {
			s.token = token
		}
	}
	opts, err := s.tlsOptions()
	if err != nil {
		return nil, exit.UsageError(err.Error())
	}
	conn, err := client.Connect(s.address, append(opts, client.WithToken(s.token))...)
	if err != nil {
		return nil, exit.UsageError("--address " + s.address + ": " + err.Error())
	}
	return conn, nil
}

// checkAddress refuses the URL of a REST server in place of a gRPC address.
func (s *Session) checkAddress() error {
	if scheme, _, ok := strings.Cut(s.address, "://"); ok && (scheme == "http" || scheme == "https") {
		return exit.UsageError(fmt.Sprintf("--address %s is a URL of REST; give the gRPC address as host:port "+
			"without %s://, by default %s", s.address, scheme, DefaultAddress))
	}
	return nil
}

// tlsOptions returns the options for a connection with TLS, and none for one in
// plain text.
func (s *Session) tlsOptions() ([]client.Option, error) {
	if !s.UsesTLS() {
		return nil, nil
	}
	store, err := certs.Open(s.tlsFiles, nil)
	if err != nil {
		return nil, err
	}
	// The store reads the files again when they change, for workers and runners
	// that run for months.
	return []client.Option{client.WithGRPC(grpc.WithTransportCredentials(store.Transport()))}, nil
}

// Connected returns a RunE that connects to the server and calls do. The
// connection is closed when do returns. Where the beginning of an id was typed, do gets the id; if the server
// knows no record of a name that was typed, do may be called again with the only one that begins so (see
// names.Run).
func (s *Session) Connected(do func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error) func(
	*cobra.Command, []string) error {
	return s.connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		return runWithIDs(cmd, conn, args, func(args []string) error { return do(cmd, conn, args) })
	})
}

// connected is Connected with the arguments as they were typed.
func (s *Session) connected(do func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error) func(
	*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		conn, err := s.connect()
		if err != nil {
			return err
		}
		defer conn.Close()
		return do(cmd, conn, args)
	}
}

// Complete lets shells complete what names records in root and the commands below it.
func (s *Session) Complete(root *cobra.Command) { completeIDs(root, s.connect) }

// Call returns a RunE that makes one call and shows its response: request returns what
// to send, and table writes the response where the output is not JSON. client and method
// are of the API's generated client, such as workv1.NewWorkServiceClient and
// workv1.WorkServiceClient.GetWorkItem.
func Call[C any, Req, Resp proto.Message](
	s *Session, client func(grpc.ClientConnInterface) C, method func(C, context.Context, Req, ...grpc.CallOption) (Resp,
		error),
	request func(args []string) (Req, error), table func(p *output.Printer, resp Resp),
) func(*cobra.Command, []string) error {
	return s.Connected(func(cmd *cobra.Command, conn *grpc.ClientConn, args []string) error {
		req, err := request(args)
		if err != nil {
			return err
		}
		resp, err := method(client(conn), cmd.Context(), req)
		if err != nil {
			return err
		}
		return s.Show(cmd, resp, func(p *output.Printer) { table(p, resp) })
	})
}

// List adds the flags for pages and the RunE to a command that shows one page of a list, and returns
// the command. request returns the request without its page. entries returns the entries of a response, which
// are rows below header; the parameter empty is the text that is shown if there are none. Each of notes returns
// a line that follows the table, or "" for none. client and method are as for Call.
func List[C any, Req proto.Message, Resp interface {
	proto.Message
	GetNextPageToken() string
}, Entry any](
	s *Session, cmd *cobra.Command, client func(grpc.ClientConnInterface) C,
	method func(C, context.Context, Req, ...grpc.CallOption) (Resp, error),
	request func(args []string) (Req, error), entries func(Resp) []Entry, empty string, header []string,
	row func(*output.Printer, Entry) []string, notes ...func() string,
) *cobra.Command {
	var pages input.Paging
	pages.Flags(cmd)
	cmd.RunE = Call(s, client, method,
		func(args []string) (Req, error) {
			req, err := request(args)
			if err == nil {
				pages.Set(req)
			}
			return req, err
		},
		func(p *output.Printer, resp Resp) {
			var rows [][]string
			for _, e := range entries(resp) {
				rows = append(rows, row(p, e))
			}
			p.Table(empty, header, rows)
			p.NextPage(resp.GetNextPageToken())
			for _, note := range notes {
				p.Note(note())
			}
		})
	return cmd
}

// Hidden returns a note for List which says that ended records are left out. It is "" if all, the value of --all, is
// set.
func Hidden(all *bool) func() string {
	return func() string {
		if *all {
			return ""
		}
		return "ended ones are not shown; --all shows them too"
	}
}

// Receive calls each with every message of a stream. It returns nil when the stream has
// ended, otherwise the first error, of the stream or of each.
func Receive[M any](stream grpc.ServerStreamingClient[M], each func(*M) error) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(m); err != nil {
			return err
		}
	}
}

// Mutation adds the flag --request-id to a command. If it is not set, Mutation
// generates an id, so that the error message for an unknown outcome can name it.
func (s *Session) Mutation(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&s.RequestID, "request-id", "", "Id of this request; repeating a request with its id "+
		"returns the first outcome (default: a new id)")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if s.RequestID == "" {
			s.RequestID = id.New().New("cli_")
		}
		return run(cmd, args)
	}
	return cmd
}

// Printer returns a printer that writes to the stdout of cmd.
func (s *Session) Printer(cmd *cobra.Command) *output.Printer {
	return output.New(cmd.OutOrStdout()).InUTC(s.utc)
}

// Zone returns the time zone in which times without one are read and written.
func (s *Session) Zone() *time.Location {
	if s.utc {
		return time.UTC
	}
	return time.Local
}

// Show writes a response to stdout: as one JSON document with -o json, otherwise as table
// writes it.
func (s *Session) Show(cmd *cobra.Command, m proto.Message, table func(p *output.Printer)) error {
	p := s.Printer(cmd)
	if s.JSON() {
		p.JSON(m)
	} else {
		table(p)
	}
	return p.Err()
}

// WithTimeout returns the command's context, which ends after d unless d is 0.
// The context has no deadline: gRPC would send it to the server, which might then
// end a stream first, as an error.
func WithTimeout(cmd *cobra.Command, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(cmd.Context())
	if d <= 0 {
		return ctx, cancel
	}
	timer := time.AfterFunc(d, cancel)
	return ctx, func() {
		timer.Stop()
		cancel()
	}
}
