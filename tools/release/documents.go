package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// documents are the files and directories of the repository that each archive has, beside its README. A directory with a slash at
// its end is taken without those below it.
var documents = []string{
	"LICENSE", "CHANGELOG.md", "SECURITY.md", "llms.txt", "docs/", "docs/guides/", "docs/pictures/",
	"examples/typescript-runner", "deploy/openapi/quartet.openapi.json",
}

// readme is the README of the archives, whose reader has a program and no repository.
const readme = "deploy/release/README.md"

var (
	// testComment matches a comment that says how a test runs the block below it.
	testComment = regexp.MustCompile(`(?s)<!-- test:.*?-->\n?`)
	// link matches a link or a picture of Markdown.
	link = regexp.MustCompile(`(!?)\[([^\[\]]*)\]\(([^)\s]+)\)`)
)

// documents returns the documents of an archive: those that the repository tracks, without comments for tests, and with the text alone
// of a link to what the archive does not have.
func (r *release) documents(ctx context.Context) ([]file, error) {
	listed, err := r.git(ctx, "ls-files", "-z", "--", ".")
	if err != nil {
		return nil, err
	}
	sources := map[string]string{"README.md": readme}
	names := []string{"README.md"}
	for name := range strings.SplitSeq(listed, "\x00") {
		if isDocument(name) {
			sources[name] = name
			names = append(names, name)
		}
	}
	has := map[string]bool{".": true}
	for _, name := range names {
		for ; name != "."; name = path.Dir(name) {
			has[name] = true
		}
	}
	var out []file
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(r.repo, filepath.FromSlash(sources[name])))
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(name, ".md") || name == "llms.txt" {
			data = forReaders(sources[name], name, data, has)
		}
		out = append(out, file{name, 0o644, data})
	}
	return out, nil
}

// isDocument reports whether a file of the repository is one of documents. Tests of examples are not.
func isDocument(name string) bool {
	if strings.HasSuffix(name, ".go") || path.Base(name) == ".gitignore" {
		return false
	}
	for _, d := range documents {
		switch {
		case name == d, strings.HasPrefix(name, d+"/"), strings.HasSuffix(d, "/") && path.Dir(name)+"/" == d:
			return true
		}
	}
	return false
}

// forReaders returns page, which is the file source in the repository, as an archive has it under name. has are the
// files and directories of the archive. Comments for tests are removed. Of a link to what the archive does not have,
// the text remains, and such a picture is removed. If name differs from source, it must be in the root, and links are
// changed to lead from there.
func forReaders(source, name string, page []byte, has map[string]bool) []byte {
	page = testComment.ReplaceAll(page, nil)
	return link.ReplaceAllFunc(page, func(all []byte) []byte {
		part := link.FindSubmatch(all)
		target, section, _ := strings.Cut(string(part[3]), "#")
		if target == "" || strings.Contains(target, ":") {
			return all
		}
		at := path.Join(path.Dir(source), target)
		switch {
		case has[at] && source == name:
			return all
		case has[at]:
			if section != "" {
				at += "#" + section
			}
			return fmt.Appendf(nil, "%s[%s](%s)", part[1], part[2], at)
		case len(part[1]) > 0:
			return nil // a picture
		}
		return bytes.Clone(part[2])
	})
}
