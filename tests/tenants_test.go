package tests

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
	"quartet/tests/proc"
)

// poison are values that mean something to somebody on the way: subjects of
// NATS, paths, separators of keys and tokens.
var poison = []string{
	"*", ">", "vault.*", "*.vault", "quartet.events.>", "$JS.API.>", "default.vault", "default/vault", "globex/vault",
	"vault\x00", "\x00", "a\x1fb",
	"..", "../default/vault", "/etc/passwd", "%2e%2e", "vault\n", "VAULT", "vault ", "💥", "{}", "null",
	strings.Repeat("x", 300), "",
}

// fuzzer makes requests of one tenant against another.
type fuzzer struct {
	*rand.Rand
	self, other *tenant
}

// text returns a value for a field.
func (f *fuzzer) text(field string) string {
	pick := func(from []string) string {
		if len(from) == 0 {
			return poison[f.IntN(len(poison))]
		}
		return from[f.IntN(len(from))]
	}
	name := strings.TrimSuffix(field, "s") // agent_ids
	switch {
	case name == "agent_id" || name == "session_id" || strings.HasSuffix(name, "_agent_id"):
		return pick([]string{f.other.own(), f.other.own(), shared, f.self.own(), "nobody", pick(poison)})
	case name == "cmd" || name == "argv" || name == "workdir":
		return "true" // a command runs on the worker that all tenants share here
	case name == "key_id":
		return pick(f.other.ids[name]) // a tenant that revokes its own keys asks for nothing more
	case name == "token":
		return pick(append([]string{"qtr_x"}, poison...)) // a trigger's is its own credential
	}
	switch f.IntN(10) {
	case 0, 1, 2, 3, 4:
		return pick(f.other.ids[name])
	case 5:
		return fake(pick(f.other.ids[name]))
	case 6:
		return pick(f.self.ids[name])
	case 7:
		return "x"
	}
	return pick(poison)
}

// fake returns an id of the same form that nobody has.
func fake(id string) string {
	if i := strings.IndexByte(id, '_'); i > 0 && len(id) == i+27 {
		return id[:i+1] + "0000000000000000000000zzzz"
	}
	return "never-" + strings.Map(func(r rune) rune {
		if r > ' ' && r < 127 {
			return r
		}
		return 'x'
	}, id)
}

// fill gives a message random fields, those that address with what the other
// tenant has.
func (f *fuzzer) fill(m protoreflect.Message, depth int) {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		name := string(fd.Name())
		addressing := strings.HasSuffix(name, "_id") || name == "cursor" || name == "page_token"
		if f.IntN(3) > 0 && !addressing && depth > 0 {
			continue
		}
		if f.IntN(8) == 0 {
			continue // left out
		}
		switch {
		case fd.IsMap():
		case fd.IsList():
			if fd.Message() == nil {
				m.Mutable(fd).List().Append(f.scalar(fd))
			} else if depth < 3 {
				f.fill(m.Mutable(fd).List().AppendMutable().Message(), depth+1)
			}
		case fd.Message() == nil:
			m.Set(fd, f.scalar(fd))
		case fd.Message().FullName() == "google.protobuf.Duration":
			d := durationpb.New(time.Millisecond)
			if name == "after" || name == "every" || name == "expires_after" {
				d = durationpb.New(24 * time.Hour)
			}
			m.Set(fd, protoreflect.ValueOfMessage(d.ProtoReflect()))
		case fd.Message().FullName() == "google.protobuf.Timestamp":
			m.Set(fd, protoreflect.ValueOfMessage(timestamppb.New(time.Now().Add(24*time.Hour)).ProtoReflect()))
		case strings.HasPrefix(string(fd.Message().FullName()), "google."):
		case depth < 3:
			f.fill(m.Mutable(fd).Message(), depth+1)
		}
	}
	// A watch that would wait for what is to come says nothing more.
	if fd := m.Descriptor().Fields().ByName("stop_at_end"); fd != nil {
		m.Set(fd, protoreflect.ValueOfBool(true))
	}
	// How long to poll is not left to chance, nor to the default.
	for _, name := range []protoreflect.Name{"wait", "yield_time"} {
		if fd := m.Descriptor().Fields().ByName(name); fd != nil && fd.Message() != nil &&
			fd.Message().FullName() == "google.protobuf.Duration" {
			m.Set(fd, protoreflect.ValueOfMessage(durationpb.New(time.Millisecond).ProtoReflect()))
		}
	}
}

func (f *fuzzer) scalar(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(f.text(string(fd.Name())))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(f.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(f.IntN(fd.Enum().Values().Len() + 1)))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(f.IntN(5)) - 1)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(f.IntN(5)) - 1)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(f.IntN(5)))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(f.IntN(5)))
	}
	return fd.Default()
}

// said is everything that came back of a call, as text.
func saidBy(replies []proto.Message, err error) string {
	var b strings.Builder
	for _, m := range replies {
		text, e := protojson.Marshal(m)
		fmt.Fprintf(&b, "%s %v\n", text, e)
		for _, raw := range rawBytes(m.ProtoReflect()) { // which JSON has in base64
			b.Write(raw)
		}
	}
	if err != nil {
		fmt.Fprintf(&b, "%v %v", err, fault.From(err).GRPCStatus().Proto())
	}
	return b.String()
}

func rawBytes(m protoreflect.Message) (out [][]byte) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				out = append(out, rawBytes(v.List().Get(i).Message())...)
			}
		case fd.IsList():
		case fd.Message() != nil:
			out = append(out, rawBytes(v.Message())...)
		case fd.Kind() == protoreflect.BytesKind:
			out = append(out, v.Bytes())
		}
		return true
	})
	return out
}

// rounds returns how often each method and role is tried; TENANT_ROUNDS and
// TENANT_SEED ask for more and for others.
func rounds(t *testing.T) (n int, seed uint64) {
	number := func(name string, def uint64) uint64 {
		if text := os.Getenv(name); text != "" {
			v, err := strconv.ParseUint(text, 10, 64)
			require.NoError(t, err)
			return v
		}
		return def
	}
	n, seed = int(number("TENANT_ROUNDS", 8)), number("TENANT_SEED", uint64(time.Now().UnixNano()))
	t.Logf("TENANT_ROUNDS=%d TENANT_SEED=%d", n, seed)
	return n, seed
}

// TestX4_NoTenantSeesAnothersByte: two tenants with something of everything ask
// for all that the other has, by every method and role over gRPC, and by every
// route over REST. No answer has a byte that carries the other's mark, the
// other's records stay as they are, and what is the other's is told as what
// never was.
func TestX4_NoTenantSeesAnothersByte(t *testing.T) {
	proc.Long(t)
	t.Parallel() // most of it is waiting
	h := newHouse(t, nil)
	// One of them is the tenant that is taken where none is named: what forgets
	// the tenant finds this one's.
	a, b := newTenant(t, h, "default"), newTenant(t, h, "globex")
	for _, pair := range [][2]*tenant{{b, a}, {a, b}} {
		self, other := pair[0], pair[1]
		before := other.facts(t)
		t.Run("not yours is not there/"+self.name, func(t *testing.T) { notThere(t, self, other) })
		t.Run("gRPC/"+self.name, func(t *testing.T) { fuzzMethods(t, self, other) })
		t.Run("REST/"+self.name, func(t *testing.T) { fuzzRoutes(t, self, other) })
		t.Run("tools/"+self.name, func(t *testing.T) { fuzzTools(t, self, other) })
		t.Run("nothing changed/"+self.name, func(t *testing.T) {
			after := other.facts(t)
			require.Equal(t, before, after[:min(len(before), len(after))], "what was there is there as it was")
			for _, line := range after {
				require.NotContains(t, line, self.mark, "somebody of the other tenant did something here")
			}
			for _, line := range self.facts(t) {
				require.NotContains(t, line, other.mark)
				require.Contains(t, line, `"namespace":"`+self.name+`"`)
			}
		})
	}
	metrics := h.rest(t, "", "GET", "/metrics", "").body
	for _, te := range []*tenant{a, b} {
		require.NotContains(t, metrics, te.mark)
		require.NotContains(t, metrics, te.own())
	}
	require.NotContains(t, metrics, "globex", "metrics have no tenants in them")
}

var cursors = regexp.MustCompile(`"cursor":"[^"]*",?`)

// facts returns the tenant's events. Their cursors are of all journals, so they move
// with others' events.
func (te *tenant) facts(t *testing.T) []string {
	body := te.h.rest(t, te.tokens[rpc.RoleOperator], "GET", "/v1/events?from_start=true&stop_at_end=true", "").body
	lines := strings.Split(strings.TrimSpace(cursors.ReplaceAllString(body, "")), "\n")
	slices.Sort(lines) // journals are merged by time: a later event of one may come between
	return lines
}

func fuzzMethods(t *testing.T, self, other *tenant) {
	n, seed := rounds(t)
	f := &fuzzer{rand.New(rand.NewPCG(seed, 1)), self, other}
	for _, md := range methods(t) {
		for role, conn := range self.conns {
			for range n {
				req := message(md.Input())
				f.fill(req.ProtoReflect(), 0)
				replies, err := ask(soon(t), conn, md, req)
				got := saidBy(replies, err)
				require.NotContains(t, got, other.mark, "%s as %s: %v", md.FullName(), role, req)
				require.NotErrorIs(t, err, fault.InternalError, "%s as %s: %v", md.FullName(), role, req)
			}
		}
	}
}

var parameter = regexp.MustCompile(`\{([a-zA-Z]+)\}`)

func fuzzRoutes(t *testing.T, self, other *tenant) {
	n, seed := rounds(t)
	f := &fuzzer{rand.New(rand.NewPCG(seed, 2)), self, other}
	all := routes(t)
	all["/v1/sessions/{sessionId}/wal/{walName}.wal.jsonl"] = []string{"GET"}
	paths := make([]string, 0, len(all))
	for p := range all {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	roles := append(slices.Clone(attackers), "run of "+shared)
	for _, template := range paths {
		for _, method := range all[template] {
			for range n {
				for _, role := range roles {
					path := parameter.ReplaceAllStringFunc(template, func(p string) string {
						return url.PathEscape(f.text(snakeCase(strings.Trim(p, "{}"))))
					})
					query := url.Values{}
					body := ""
					if method == "GET" {
						for _, name := range []string{
							"agent_id", "work_item_id", "page_token", "cursor",
							"lineage_parent_agent_id", "namespace", "path", "wal_name", "turn_id",
						} {
							if f.IntN(6) == 0 {
								query.Set(name, f.text(name))
							}
						}
						if strings.HasSuffix(template, "/events") {
							query.Set("stop_at_end", "true")
						}
					} else {
						body = fmt.Sprintf(`{"workItemId":%q,"wait":"0.001s","reason":"x"}`, f.text("work_item_id"))
						if f.IntN(2) == 0 {
							body = `{"yieldTime":"0.001s","wait":"0.001s"}`[f.IntN(2):]
						}
					}
					got, sent := self.raw(t, self.tokens[role], method, path, query, body)
					if sent {
						require.NotContains(t, got, other.mark, "%s %s?%v as %s", method, path, query, role)
						require.NotContains(t, got[:4], "500", "%s %s?%v as %s: %s", method, path, query, role, got)
					}
				}
			}
		}
	}
}

// fuzzTools asks over MCP, and by an agent's tools.
func fuzzTools(t *testing.T, self, other *tenant) {
	n, seed := rounds(t)
	f := &fuzzer{rand.New(rand.NewPCG(seed, 3)), self, other}
	for _, agent := range []string{shared, self.own(), other.own()} {
		for _, role := range []string{rpc.RoleOperator, rpc.RoleAgent, "run of " + shared} {
			for range n {
				id := f.text("work_item_id")
				for _, call := range []string{
					`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
					`{"jsonrpc":"2.0","id":1,"method":"resources/list"}`,
					fmt.Sprintf(
						`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"GetWorkItem","arguments":{"work_item_id":%q}}}`, id),
					fmt.Sprintf(
						`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"AgentGet","arguments":{"agent_id":%q}}}`, f.text("agent_id")),
					fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":%q}}`,
						"quartet://agents/"+other.own()+"/work-items/"+id+"/plan"),
				} {
					got, sent := self.raw(t, self.tokens[role], "POST", "/mcp/"+agent, nil, call)
					require.True(t, sent)
					require.NotContains(t, got, other.mark, "%s as %s of %s", call, role, agent)
				}
				for _, tool := range []string{"GetWorkItem", "AgentGet", "TaskOutput", "CompleteWorkItem"} {
					body := fmt.Sprintf(`{"arguments":{"work_item_id":%q,"agent_id":%q,"task_id":%q}}`, id,
						f.text("agent_id"), f.text("task_id"))
					got, sent := self.raw(t, self.tokens[role], "POST", "/v1/agents/"+agent+"/tools/"+tool+":call", nil,
						body)
					require.True(t, sent)
					require.NotContains(t, got, other.mark, "%s %s as %s of %s", tool, body, role, agent)
				}
			}
		}
	}
}

// notThere asks for the other tenant's records and for ones that nobody has:
// the answers differ in nothing but the ids that were asked for.
func notThere(t *testing.T, self, other *tenant) {
	compared := 0
	for _, md := range methods(t) {
		if md.IsStreamingClient() || md.Name() == "SpawnAgent" { // which makes what is not there
			continue
		}
		for _, role := range []string{
			rpc.RoleOperator, rpc.RoleRunner, rpc.RoleIntegration, rpc.RoleAgent,
			rpc.RoleWorker,
		} {
			try := func(theirs bool) (string, codes.Code) {
				req, replace := about(md, other, role, theirs)
				replies, err := ask(soon(t), self.conns[role], md, req)
				if err == nil {
					replies = nil // about what is its own: times and new ids differ
				}
				return strings.NewReplacer(replace...).Replace(saidBy(replies, err)), status.Code(err)
			}
			theirs, code := try(true)
			nobodys, want := try(false)
			require.Equal(t, want, code, "%s as %s: %s, and where nobody has it: %s", md.FullName(), role, theirs,
				nobodys)
			require.Equal(t, nobodys, theirs, "%s as %s", md.FullName(), role)
			compared++
		}
	}
	require.Greater(t, compared, 300)
}

// about returns a request for records of the other tenant, or for ones that nobody
// has, and what stands for them in an answer.
func about(md protoreflect.MethodDescriptor, other *tenant, role string, theirs bool) (proto.Message, []string) {
	req := addressed(md, shared)
	m := req.ProtoReflect()
	var replace []string
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		name := string(fd.Name())
		switch {
		case name == "stop_at_end":
			m.Set(fd, protoreflect.ValueOfBool(true))
		case fd.Kind() != protoreflect.StringKind || fd.IsList() || !strings.HasSuffix(name, "_id") &&
			name != "wal_name" || name == "request_id":
			continue
		}
		var value string
		ids := other.ids[name]
		switch {
		case name == "agent_id" || name == "session_id":
			if value = other.own(); !theirs {
				value = "none-" + other.name
			}
			if role == rpc.RoleAgent {
				value = shared // its own, with the other's ids below it
			}
		case fd.Kind() != protoreflect.StringKind || len(ids) == 0:
			continue
		case theirs:
			value = ids[len(ids)-1]
		default:
			value = fake(ids[len(ids)-1])
		}
		m.Set(fd, protoreflect.ValueOfString(value))
		replace = append(replace, value, "<"+name+">")
	}
	return req, replace
}
