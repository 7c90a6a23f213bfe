package console

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"quartet/pkg/fault"
)

// bundle has the files that `make console` writes: index.html, and in assets files whose names contain
// a hash of their content.
//
//go:embed dist
var bundle embed.FS

// policy is the Content-Security-Policy of the console: everything is loaded from this server, no script or style is
// inline, no other page may embed it, and scripts cannot turn text into scripts or markup.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"worker-src 'self'; " +
	"manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for " +
	"'script'; trusted-types quartet"

// file is a file of the console.
type file struct {
	contentType  string
	plain, small []byte // the content, uncompressed and compressed with gzip
	immutable    bool   // the name changes with the content
}

// load reads and compresses the files of the console.
func load(from fs.FS) (map[string]*file, error) {
	files := map[string]*file{}
	err := fs.WalkDir(from, "dist", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		plain, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		var small bytes.Buffer
		z := gzip.NewWriter(&small)
		if _, err := z.Write(plain); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "dist/")
		f := &file{
			contentType: typeOf(name), plain: plain, small: small.Bytes(),
			immutable: strings.HasPrefix(name, "assets/"),
		}
		if name == "index.html" {
			name = ""
		}
		files[name] = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if files[""] == nil {
		return nil, errors.New("console: its files are not part of this binary; make console builds them")
	}
	return files, nil
}

// typeOf returns the media type of a file. For the names that a build of the console has it does not depend on
// the machine's table of types, which decides about other names.
func typeOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".txt":
		return "text/plain; charset=utf-8"
	}
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

// Pages returns the handler of Path and the paths below it, which serves the files of the console. They need no
// credential, since they show nothing but the version. It calls refuse to respond to requests for other paths.
func (c *Console) Pages(refuse Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, below := strings.CutPrefix(r.URL.Path, Path+"/")
		if !below {
			// The location is relative, so that it is also right behind a proxy that adds a prefix.
			w.Header().Set("Location", strings.TrimPrefix(Path, "/")+"/")
			w.WriteHeader(http.StatusPermanentRedirect)
			return
		}
		f := c.files[name]
		if f == nil {
			refuse(w, r, fault.NotFound.New("the console has no such file; it begins at "+Path+"/", "path", r.URL.Path))
			return
		}
		f.serve(w, r)
	})
}

// serve responds with the file.
func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	if f.immutable {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	body := f.plain
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = f.small
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have left
	}
}

// acceptsGzip reports whether the client accepts gzip by its Accept-Encoding.
func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			return strings.ReplaceAll(weight, " ", "") != "q=0"
		}
	}
	return false
}
