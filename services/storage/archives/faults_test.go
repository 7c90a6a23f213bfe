package archives

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/minio/minio-go/v7"
)

// transport replaces how a bucket's requests are sent.
func transport(b *Bucket, wrap func(http.RoundTripper) http.RoundTripper) {
	creds, err := open(b.cfg.CredentialsFile)
	if err != nil {
		panic(err)
	}
	plain := http.DefaultTransport.(*http.Transport).Clone()
	core, err := minio.NewCore(b.location.host(), &minio.Options{
		Creds: creds, Secure: !b.location.Plain,
		Region: b.location.Region, MaxRetries: attempts, Transport: wrap(plain),
	})
	if err != nil {
		panic(err)
	}
	b.client = *core
}

// roundTripper is an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// counter counts the bytes of answers.
type counter struct{ bytes atomic.Int64 }

// counting counts what a bucket reads.
func counting(b *Bucket) *counter {
	c := &counter{}
	transport(b, func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err != nil {
				return nil, err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			c.bytes.Add(int64(len(body)))
			resp.Body = io.NopCloser(bytes.NewReader(body))
			return resp, err
		})
	})
	return c
}

// answerLost loses the first answer to a request that writes an object.
type answerLost struct {
	*Bucket
	key string
	n   atomic.Int64
}

func (l *answerLost) answers() int { return int(l.n.Load()) }

func (l *answerLost) install() {
	transport(l.Bucket, func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err == nil && req.Method == http.MethodPut && strings.HasSuffix(req.URL.Path, l.key) &&
				l.n.CompareAndSwap(0, 1) {
				_ = resp.Body.Close()
				return nil, io.ErrUnexpectedEOF
			}
			return resp, err
		})
	})
}

// before calls a function before a request is sent.
type before struct {
	b    *Bucket
	once sync.Once
	was  atomic.Bool
}

// beforeRequest calls fn before the first request with a method and a part of the object's name.
func beforeRequest(b *Bucket, request string, fn func()) *before {
	at := &before{b: b}
	method, name, _ := strings.Cut(request, " ")
	transport(b, func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method == method && strings.Contains(req.URL.Path, "/"+name) {
				at.once.Do(func() { at.was.Store(true); fn() })
			}
			return next.RoundTrip(req)
		})
	})
	return at
}

func (at *before) reached() bool { return at.was.Load() }

// remove sends requests as before.
func (at *before) remove() {
	transport(at.b, func(next http.RoundTripper) http.RoundTripper { return next })
}
