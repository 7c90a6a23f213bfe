// Command console bundles the pages of the console: console SOURCE OUT reads the sources and the
// installed packages in SOURCE and writes the files that the server embeds to OUT. The same sources and
// packages give the same bytes.
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// maxCompressed is how many bytes all files may have together, compressed.
const maxCompressed = 300 << 10

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: console SOURCE OUT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "console:", err)
		os.Exit(1)
	}
}

// run bundles the sources, removes the directory out with the files of an earlier run, and writes all files to it.
func run(source, out string) error {
	source, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	files, err := bundle(source)
	if err != nil {
		return err
	}
	page, err := os.ReadFile(filepath.Join(source, "index.html"))
	if err != nil {
		return err
	}
	icon, err := os.ReadFile(filepath.Join(source, "icon.svg"))
	if err != nil {
		return err
	}
	files["icon.svg"] = icon
	licenses, err := licenses(source)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(out, "assets"), 0o755); err != nil { //nolint:gosec // sources are for everybody
		return err
	}
	written := map[string][]byte{"licenses.txt": licenses}
	for name, content := range files {
		hashed := "assets/" + withHash(name, content)
		if !bytes.Contains(page, []byte("{{"+name+"}}")) {
			return fmt.Errorf("index.html does not name %s", name)
		}
		page = bytes.ReplaceAll(page, []byte("{{"+name+"}}"), []byte(hashed))
		written[hashed] = content
	}
	if bytes.Contains(page, []byte("{{")) {
		return errors.New("index.html names a file that was not made")
	}
	written["index.html"] = page
	size := 0
	for name, content := range written {
		if err := os.WriteFile(filepath.Join(out, name), content, 0o644); err != nil { //nolint:gosec // sources are for everybody
			return err
		}
		n, err := compressed(content)
		if err != nil {
			return err
		}
		size += n
	}
	if size > maxCompressed {
		return fmt.Errorf("the files have %d bytes compressed; %d is the most", size, maxCompressed)
	}
	fmt.Printf("console: %d files, %d KiB compressed\n", len(written), size>>10)
	return nil
}

// bundle returns the bundled scripts and styles, by name.
func bundle(source string) (map[string][]byte, error) {
	result := api.Build(api.BuildOptions{
		AbsWorkingDir: source, EntryPoints: []string{"src/main.tsx", "src/layout.worker.ts", "src/style.css"},
		Bundle: true, Write: false, Outdir: "out", Format: api.FormatESModule, Target: api.ES2022,
		Platform: api.PlatformBrowser,
		JSX:      api.JSXAutomatic, JSXImportSource: "preact", LegalComments: api.LegalCommentsNone,
		Charset:          api.CharsetUTF8,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, TsconfigRaw: "{}",
		LogLevel: api.LogLevelWarning,
		Define:   map[string]string{"process.env.NODE_ENV": `"production"`},
	})
	if len(result.Errors) > 0 {
		return nil, fmt.Errorf("%d errors", len(result.Errors))
	}
	files := map[string][]byte{}
	for _, f := range result.OutputFiles {
		name := filepath.Base(f.Path)
		if name == "style.css" {
			name = "main.css"
		}
		files[name] = f.Contents
	}
	return files, nil
}

// withHash returns name with a hash of content inserted before its extension.
func withHash(name string, content []byte) string {
	sum := sha256.Sum256(content)
	ext := filepath.Ext(name)
	return strings.TrimSuffix(name, ext) + "-" + hex.EncodeToString(sum[:6]) + ext
}

// licenses returns one text with the license texts of the packages in bundled, sorted by package. It leaves out a
// package without a file LICENSE.
func licenses(source string) ([]byte, error) {
	found, err := filepath.Glob(filepath.Join(source, "node_modules", "*", "LICENSE"))
	if err != nil {
		return nil, err
	}
	scoped, err := filepath.Glob(filepath.Join(source, "node_modules", "@*", "*", "LICENSE"))
	if err != nil {
		return nil, err
	}
	found = append(found, scoped...)
	slices.Sort(found)
	var out bytes.Buffer
	out.WriteString("The scripts of the console contain code of these packages.\n")
	for _, path := range found {
		name, err := filepath.Rel(filepath.Join(source, "node_modules"), filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		if !slices.Contains(bundled, name) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "\n%s\n\n%s\n", name, bytes.TrimSpace(text))
	}
	return out.Bytes(), nil
}

// bundled are the packages whose code is in the bundle.
var bundled = []string{"@dagrejs/dagre", "@dagrejs/graphlib", "preact"}

// compressed returns how many bytes content has when it is compressed with gzip.
func compressed(content []byte) (int, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(content); err != nil {
		return 0, err
	}
	err := z.Close()
	return out.Len(), err
}
