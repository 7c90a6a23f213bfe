package quota

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/fault"
	"quartet/pkg/must"
	"quartet/pkg/rpc"
)

// TestG10_Streams: a credential has half of the streams of its namespace, that has its quota, and all together
// have those of the process; a stream that is closed makes room.
func TestG10_Streams(t *testing.T) {
	l := must.Value(Parse(map[string]int{Streams: 10}, map[string]string{"free.streams": "0"}))(t)
	g := NewGate(Config{Limits: l})
	open := func(namespace, principal string) (func(), error) {
		return g.Stream(rpc.Actor{Namespace: namespace, Principal: principal, Role: rpc.RoleOperator})
	}
	var closes []func()
	for i := range 10 {
		closes = append(closes, must.Value(open("acme", "key/"+strconv.Itoa(i/5)))(t))
		if i == 4 { // at the limit of one credential
			_, err := open("acme", "key/0")
			require.ErrorIs(t, err, fault.Overloaded)
			require.Equal(t, "credential", fault.From(err).Metadata()["bound"])
			require.Equal(t, streamAfter, fault.From(err).RetryAfter())
		}
	}
	_, err := open("acme", "key/2")
	require.ErrorIs(t, err, fault.Overloaded)
	require.Equal(t, "namespace", fault.From(err).Metadata()["bound"])
	closes[0]()
	closes[0]()
	release := must.Value(open("acme", "key/0"))(t)
	release()
	for range streamsTotal - 9 {
		must.Value(open("free", "key/0"))(t)
	}
	_, err = open("other", "key/0")
	require.ErrorIs(t, err, fault.Overloaded)
	require.Equal(t, "process", fault.From(err).Metadata()["bound"])
	must.Value(g.Stream(rpc.Actor{Namespace: "acme", Role: rpc.RoleService}))(t)
}
