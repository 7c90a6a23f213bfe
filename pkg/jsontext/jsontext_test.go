package jsontext

import (
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quartet/pkg/must"
)

// What AppendString writes is what encoding/json reads, and what Str reads.
func TestAString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		if rapid.Bool().Draw(t, "text") {
			s = rapid.String().Draw(t, "string")
		}
		text, valid := AppendValid(nil, s)
		require.Equal(t, utf8.ValidString(s), valid)
		var want string
		require.NoError(t, json.Unmarshal(text, &want))
		l := Lexer{In: text}
		require.Equal(t, want, string(must.Value(l.Str())(t)))
		require.Equal(t, len(text), l.Pos)
		if valid {
			require.Equal(t, want, s)
		}
	})
}

func TestATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMicro(rapid.Int64Range(-62167219200_000000, 253402300799_999999).Draw(t, "micros")).UTC()
		text := AppendTime(nil, at)
		require.Equal(t, `"`+at.Format(timeLayout)+`"`, string(text))
		got := must.Value(ParseTime(text[1 : len(text)-1]))(t)
		require.True(t, at.Equal(got), "%s became %s", at, got)
	})
	for _, s := range []string{"2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5+02:00"} {
		want := must.Value(time.Parse(time.RFC3339Nano, s))(t)
		require.True(t, want.Equal(must.Value(ParseTime([]byte(s)))(t)))
	}
	for _, s := range []string{
		"", "2026", "2026-02-30T00:00:00.000000Z", "2026-13-01T00:00:00.000000Z", "2026-00-01T00:00:00.000000Z",
		"2026-01-01T24:00:00.000000Z", "2026-01-01T00:60:00.000000Z", "2026-01-01T00:00:60.000000Z",
		"2026-01-00T00:00:00.000000Z",
		"2026-01-01 00:00:00.000000Z", "2o26-01-01T00:00:00.000000Z",
	} {
		require.Error(t, must.Err(ParseTime([]byte(s))), s)
	}
	require.Equal(t, `"12026-01-02T03:04:05.000000Z"`,
		string(AppendTime(nil, time.Date(12026, 1, 2, 3, 4, 5, 0, time.UTC))))
}

// Raw finds the end of any value and nothing more.
func TestRaw(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":[1,"}"]} , 2`: `{"a":[1,"}"]}`,
		`"a\"b" x`:          `"a\"b"`,
		` -1.5e3]`:          `-1.5e3`,
		`null}`:             `null`,
		`[[],[{}]]`:         `[[],[{}]]`,
	} {
		l := Lexer{In: []byte(text)}
		got := must.Value(l.Raw())(t, text)
		require.Equal(t, want, string(got))
	}
	for _, text := range []string{"", " ", `"abc`, `{"a":1`, `[`, `[1}2`, `,`, `{"a`} {
		l := Lexer{In: []byte(text)}
		_, err := l.Raw()
		if text != `[1}2` { // what is inside is not checked, so any closing bracket counts
			var syntax *SyntaxError
			require.ErrorAs(t, err, &syntax, text)
		}
	}
}

func TestSyntaxErrorsSayWhere(t *testing.T) {
	l := Lexer{In: []byte(`{"a" 1}`)}
	require.NoError(t, l.Expect('{'))
	must.Value(l.Str())(t)
	require.EqualError(t, l.Expect(':'), `'1' where ':' should be at byte 5`)
	l = Lexer{In: []byte(`["a",]`)}
	require.NoError(t, l.Expect('['))
	more, err := l.Next(']', true)
	require.True(t, more)
	require.NoError(t, err)
	must.Value(l.Str())(t)
	_, err = l.Next(']', false)
	require.EqualError(t, err, "a comma without a value after it at byte 5")
}

func FuzzLexer(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-3,null,true,"x\u00e9\ud83d\ude00"]}`, `"\ud800"`, `[1,]`, "\"\x01\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, read := range []func(*Lexer) error{
			func(l *Lexer) error { _, err := l.Str(); return err },
			func(l *Lexer) error { _, _, err := l.Number(); return err },
			func(l *Lexer) error { _, err := l.Raw(); return err },
		} {
			l := Lexer{In: in}
			if read(&l) == nil && (l.Pos < 0 || l.Pos > len(in)) {
				t.Fatalf("position %d of %d bytes", l.Pos, len(in))
			}
		}
	})
}
