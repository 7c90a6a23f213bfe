package archives

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quartet/pkg/must"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Location{
		"s3://b-1?region=eu-central-1":  {Bucket: "b-1", Region: "eu-central-1"},
		"s3://b-1/?region=eu-central-1": {Bucket: "b-1", Region: "eu-central-1"},
		"s3://b-1/a/b/?endpoint=https://s3.example.com": {
			Bucket: "b-1", Prefix: "a/b", Endpoint: "s3.example.com", Region: "us-east-1",
		},
		"s3://b-1/a?endpoint=s3.example.com:9000&region=x": {
			Bucket: "b-1", Prefix: "a", Endpoint: "s3.example.com:9000", Region: "x",
		},
		"s3://b-1/a?endpoint=http%3A%2F%2F127.0.0.1%3A9000%2F": {
			Bucket: "b-1", Prefix: "a", Endpoint: "127.0.0.1:9000", Plain: true, Region: "us-east-1",
		},
		"s3://b-1/a?endpoint=http://[::1]:9000&region=us-east-1": {
			Bucket: "b-1", Prefix: "a", Endpoint: "[::1]:9000", Plain: true, Region: "us-east-1",
		},
	} {
		got := must.Value(ParseLocation(text))(t, text)
		require.Equal(t, want, got, text)
	}
	for text, want := range map[string]string{
		"":                               "it must be as s3://",
		"/var/archive":                   "it must be as s3://",
		"http://b-1/a":                   "it must be as s3://",
		"s3://":                          "it must be as s3://",
		"s3:b-1":                         "it must be as s3://",
		"s3://key:secret@b-1/a?region=x": "credentials are in a file",
		"s3://b_1?region=x":              "no name of a bucket",
		"s3://b-1:80?region=x":           "no name of a bucket",
		"s3://b-1":                       "neither an endpoint nor the region",
		"s3://b-1/a//b?region=x":         "empty part",
		"s3://b-1/../b?region=x":         "empty part",
		"s3://b-1?region=x&region=y":     "region is given 2 times",
		"s3://b-1?regoin=x":              `no parameter "regoin"`,
		"s3://b-1?endpoint=ftp://a":      "endpoint must be the address",
		"s3://b-1?endpoint=https://a/b":  "endpoint must be the address",
		"s3://b-1?endpoint=":             "endpoint must be the address",
		"s3://b-1/%zz?region=x":          "it must be as s3://",
		"s3://b-1?region=%zz":            "it must be as s3://",
	} {
		_, err := ParseLocation(text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "secret@")
	}
}

func TestLocation_String(t *testing.T) {
	require.Equal(t, "s3://b/p of h:1", Location{Bucket: "b", Prefix: "p", Endpoint: "h:1"}.String())
	require.Equal(t, "s3://b", Location{Bucket: "b"}.String())
}

func TestCredentials(t *testing.T) {
	file := func(mode os.FileMode, text string) string {
		path := filepath.Join(t.TempDir(), "credentials")
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	const good = "access_key_id = k\nsecret_access_key = s=+/\n"
	for _, mode := range []os.FileMode{0o400, 0o600, 0o440, 0o640} {
		v := must.Value(must.Value(open(file(mode, good)))(t).GetWithContext(nil))(t)
		require.Equal(t, "k", v.AccessKeyID)
		require.Equal(t, "s=+/", v.SecretAccessKey)
	}
	for _, mode := range []os.FileMode{0o604, 0o644, 0o602, 0o660} {
		must.Fail(open(file(mode, good)))(t, "chmod 600")
	}
	for text, want := range map[string]string{
		"":                                     "must have the lines",
		"access_key_id=k\n":                    "must have the lines",
		"[a]\n" + good + "[b]\n":               "more than one section",
		string(make([]byte, maxCredentials+1)): "more than",
	} {
		_, err := open(file(0o600, text))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "s=+/")
	}
	must.Fail(open(filepath.Join(t.TempDir(), "none")))(t, "name a file that this user can read")

	path := file(0o600, "# of the archive\n[default]\naws_access_key_id = k\n; here\naws_secret_access_key = "+
		"s\naws_session_token = t\n")
	c := must.Value(open(path))(t)
	v := must.Value(c.GetWithContext(nil))(t)
	require.Equal(t, "t", v.SessionToken)
	require.NoError(t, os.WriteFile(path, []byte("access_key_id = other\nsecret_access_key = s\n"), 0o600))
	v = must.Value(c.GetWithContext(nil))(t)
	require.Equal(t, "other", v.AccessKeyID, "it is read again when it changes")
}

func FuzzParse(f *testing.F) {
	f.Add(LocationExample)
	f.Add("s3://b-1/a?endpoint=http://127.0.0.1:9000")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLocation(text)
		if err == nil {
			require.NotEmpty(t, l.Bucket)
			require.NotEmpty(t, l.Region)
		}
	})
}
