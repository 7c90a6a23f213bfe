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

// documents are the files and directories of the repository that each archive has in addition to its README. Of a
// directory with a slash at its end, an archive has only the files directly in it.
var documents = []string{
	"LICENSE", "CHANGELOG.md", "SECURITY.md", "llms.txt", "docs/", "docs/guides/", "docs/pictures/",
	"examples/typescript-runner", "deploy/openapi/quartet.openapi.json",
}

// readme is the file that archives have as their README, for readers who have the program and not the repository.
const readme = "deploy/release/README.md"

var (
	// testComment matches a comment that says how a test of the documents runs the code block below it.
	testComment = regexp.MustCompile(`(?s)<!-- test:.*?-->\n?`)
	// link matches a link or a picture of Markdown.
	link = regexp.MustCompile(`(!?)\[([^\[\]]*)\]\(([^)\s]+)\)`)
)

// documents returns the documents of an archive: the README, and the files of documents that git tracks. In Markdown
// it removes comments for tests, and replaces links to files that the archive does not have by their texts.
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

// isDocument reports whether a file of the repository is one of documents. Go files, such as the tests of examples,
// and .gitignore are not.
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

// forReaders returns page, the content of the file source in the repository, as an archive has it under name. has
// is the set of the files and directories of the archive. It removes comments for tests, replaces links to files
// that the archive does not have by their texts, and removes such pictures. If name differs from source, name must
// be in the root of the archive, and forReaders changes the other links to be relative to the root.
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
