package bus

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/journal"
)

// Fields for the plane itself are removed wherever they are, and nothing else is.
func TestP3_SecretsOfRecordsLeaveNoJournal(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"first":  {`{"token_hash":"ab","x":1}`, `{"x":1}`},
		"middle": {`{"x":1,"token_hash":"ab","y":2}`, `{"x":1,"y":2}`},
		"last":   {`{"x":1,"sealed_signing_secret":"YQ=="}`, `{"x":1}`},
		"alone":  {`{"token_hash":"ab"}`, `{}`},
		"both":   {`{"token_hash":"ab","sealed_signing_secret":"YQ=="}`, `{}`},
		"in a record": {
			`{"trigger":{"trigger_id":"trg_1","token_hash":"ab"},"token_hash":"cd"}`,
			`{"trigger":{"trigger_id":"trg_1"}}`,
		},
		"deeper":        {`{"a":[{"token_hash":"ab"},{"b":{"token_hash":"cd","c":1}}]}`, `{"a":[{},{"b":{"c":1}}]}`},
		"escaped value": {`{"token_hash":"a\"b\\","x":1}`, `{"x":1}`},
		"none":          {`{"x":1}`, `{"x":1}`},
		"in a text":     {`{"x":",\"token_hash\":\"ab\",","y":2}`, `{"x":",\"token_hash\":\"ab\",","y":2}`},
		"a longer key":  {`{"my_token_hash":"ab"}`, `{"my_token_hash":"ab"}`},
		"a text as such": {
			`{"x":"token_hash","y":"sealed_signing_secret"}`,
			`{"x":"token_hash","y":"sealed_signing_secret"}`,
		},
	} {
		before := []byte(c.in)
		require.Equal(t, c.want, string(Conceal("waiting", before)), name)
		require.Equal(t, c.in, string(before), "%s: the line is shared by all who follow", name)
		require.True(t, json.Valid(Conceal("waiting", before)), name)
		require.Equal(t, c.in, string(Conceal("agent", before)), "%s: a caller's own keys stay", name)
	}
}

// What is copied to EVENTS has none of them.
func TestP3_EventsForOthersConcealSecrets(t *testing.T) {
	line := journal.Line{
		Text: []byte(
			`{"wal_seq":2,"event_type":"external_trigger_created","agent_id":"keeper","event_id":"evt_1","namespace":"acme","plane":"waiting",` +
				`"created_at":"2026-01-01T00:00:00.000000Z","payload":{"trigger":{"trigger_id":"trg_1","token_hash":"beef","sealed_signing_secret":"c2VhbGVk"}}}`),
	}
	var w wrapped
	require.NoError(t, w.wrap([]journal.Line{line}))
	require.Len(t, w.events, 1)
	text := w.buf[w.events[0].start:w.events[0].end]
	require.True(t, json.Valid(text), string(text))
	require.Contains(t, string(text), "trg_1")
	for _, secret := range []string{"token_hash", "beef", "sealed_signing_secret", "c2VhbGVk"} {
		require.NotContains(t, string(text), secret)
		require.Contains(t, string(line.Text), secret, "the journal has it")
	}
}

func FuzzConceal(f *testing.F) {
	f.Add(`{"token_hash":"ab","x":1}`)
	f.Add(`{"x":",\"token_hash\":\"ab\",","sealed_signing_secret":"\\"}`)
	f.Add(`"token_hash":"`)
	f.Fuzz(func(t *testing.T, text string) {
		out := Conceal("waiting", []byte(text))
		var compact json.RawMessage
		if json.Unmarshal([]byte(text), &compact) == nil {
			require.True(t, json.Valid(out), "%q becomes %q", text, out)
		}
	})
}
