package work

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"quartet/pkg/fault"
	"quartet/pkg/page"
	workv1 "quartet/pkg/pb/quartet/work/v1"
)

const (
	maxListDepth     = 16
	maxPatternChars  = 1000
	maxMatchChars    = 500
	defaultMatches   = 100
	maxMatches       = 500
	maxSearchedBytes = 4 << 20 // of one file
)

// errEnough ends a walk early.
var errEnough = errors.New("work: enough")

// ListFiles lists a directory of an agent's home, or the tree below it (SPEC A11).
func (s *Service) ListFiles(ctx context.Context, req *workv1.ListFilesRequest) (*workv1.ListFilesResponse, error) {
	list, err := page.Read("files", req)
	if err != nil {
		return nil, err
	}
	resp := &workv1.ListFilesResponse{}
	depth := 1
	if req.GetRecursive() {
		depth = maxListDepth
	}
	err = s.walkHome(ctx, req.GetAgentId(), req.GetPath(), depth, list.After, func(_ fs.FS, p string, st fs.FileInfo) error {
		if len(resp.GetFiles()) == list.Size {
			resp.NextPageToken = list.Next(resp.GetFiles()[list.Size-1].GetPath())
			return errEnough
		}
		resp.Files = append(resp.Files, homeFile(p, st))
		return nil
	})
	return resp, err
}

// GrepFiles searches the text files of an agent's home (SPEC A11).
func (s *Service) GrepFiles(ctx context.Context, req *workv1.GrepFilesRequest) (*workv1.GrepFilesResponse, error) {
	if err := fault.Text("pattern", req.GetPattern(), maxPatternChars, true); err != nil {
		return nil, err
	}
	pattern, err := regexp.Compile(req.GetPattern())
	if err != nil {
		return nil, fault.Invalid("pattern", req.GetPattern(), "must be a regular expression (RE2): "+err.Error())
	}
	if _, err := path.Match(req.GetGlob(), ""); err != nil {
		return nil, fault.Invalid("glob", req.GetGlob(), "must be a pattern as in *.md")
	}
	most := int(req.GetMaxMatches())
	if most < 0 || most > maxMatches {
		return nil, fault.LimitExceeded.Newf("max_matches is %d; it must be 0 to %d", most, maxMatches).WithField("max_matches", "must be 0 to 500")
	}
	if most == 0 {
		most = defaultMatches
	}
	resp := &workv1.GrepFilesResponse{}
	err = s.walkHome(ctx, req.GetAgentId(), req.GetPath(), maxListDepth, "", func(tree fs.FS, p string, st fs.FileInfo) error {
		if ok, _ := path.Match(req.GetGlob(), path.Base(p)); req.GetGlob() != "" && !ok || !st.Mode().IsRegular() {
			return nil
		}
		content, ok := searchable(tree, p, st)
		if !ok {
			resp.Skipped++
			return nil
		}
		for n, line := range bytes.Split(content, []byte("\n")) {
			if !pattern.Match(line) {
				continue
			}
			if len(resp.GetMatches()) == most {
				resp.Truncated = true
				return errEnough
			}
			text := strings.ToValidUTF8(cut(strings.TrimSuffix(string(line), "\r"), maxMatchChars), "\uFFFD")
			resp.Matches = append(resp.Matches, &workv1.GrepMatch{Path: p, Line: int32(n + 1), Text: text})
		}
		return nil
	})
	return resp, err
}

// searchable reads a text file of moderate size.
func searchable(tree fs.FS, p string, st fs.FileInfo) ([]byte, bool) {
	if st.Size() > maxSearchedBytes {
		return nil, false
	}
	f, err := tree.Open(p)
	if err != nil {
		return nil, false
	}
	defer func() { _ = f.Close() }()
	content, err := readAtMost(f, maxSearchedBytes)
	return content, err == nil && utf8.Valid(content) && bytes.IndexByte(content, 0) < 0
}

func readAtMost(r io.Reader, n int64) ([]byte, error) { return io.ReadAll(io.LimitReader(r, n)) }

// walkHome visits what is below a path of a home, in the order of the paths'
// parts, what stands before after left out. Links are not followed.
func (s *Service) walkHome(ctx context.Context, agentID, below string, depth int, after string, visit func(tree fs.FS, p string, st fs.FileInfo) error) error {
	start := "."
	if below != "" {
		var err error
		if start, err = homePath("path", below); err != nil {
			return err
		}
	}
	h, err := s.openHome(ctx, agentID, false)
	if err != nil {
		return err
	}
	defer h.close()
	if h == nil {
		if start == "." {
			return nil
		}
		return homeTrouble(start, fs.ErrNotExist)
	}
	tree := h.FS()
	st, err := fs.Stat(tree, start)
	if err != nil {
		return homeTrouble(start, err)
	}
	if !st.IsDir() {
		if after != "" {
			return nil
		}
		return enough(visit(tree, start, st))
	}
	var last []string
	if after != "" {
		last = strings.Split(after, "/")
	}
	var walk func(dir string, level int) error
	walk = func(dir string, level int) error {
		entries, err := fs.ReadDir(tree, dir)
		if err != nil {
			return homeTrouble(dir, err)
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return fault.From(err)
			}
			p := path.Join(dir, e.Name())
			if strings.HasPrefix(e.Name(), stagedPrefix) {
				continue
			}
			parts := strings.Split(p, "/")
			inside := len(last) > len(parts) && slices.Equal(last[:len(parts)], parts)
			if shown := last == nil || slices.Compare(parts, last) > 0; shown {
				st, err := e.Info()
				if err != nil { // gone meanwhile
					continue
				}
				if err := visit(tree, p, st); err != nil {
					return err
				}
			} else if !inside && !slices.Equal(parts, last) {
				continue // all of it was listed
			}
			if e.IsDir() && level < depth {
				if err := walk(p, level+1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return enough(walk(start, 1))
}

func enough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}
