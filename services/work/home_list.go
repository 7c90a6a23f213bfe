package work

import (
	"bytes"
	"context"
	"path"
	"regexp"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/page"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/utf8cut"
	"quartet/pkg/yield"
	"quartet/services/work/homes"
)

const (
	maxPatternChars = 1000
	maxMatchChars   = 500
	defaultMatches  = 100
	maxMatches      = 500
	// A search reads at most searchBytes of searchFiles files and takes at most searchTime; see
	// GrepFilesResponse.stopped_after. A home has any number of files.
	searchBytes = 64 << 20
	searchFiles = 20_000
	searchTime  = 5 * time.Second
	// linesAtOnce is after how many lines a search looks whether its caller has left.
	linesAtOnce = 1000
)

// search is the budget of one GrepFiles.
type search struct {
	files int
	bytes int64
	until time.Time
	last  string // the last file that was searched
}

// spent reports whether the budget is used up, at now.
func (b *search) spent(now time.Time) bool {
	return b.files >= searchFiles || b.bytes >= searchBytes || !now.Before(b.until)
}

// ListFiles lists a directory of an agent's home, or the tree below it (SPEC A11).
func (s *Service) ListFiles(ctx context.Context, req *workv1.ListFilesRequest) (*workv1.ListFilesResponse, error) {
	list, err := page.Read("files", req)
	if err != nil {
		return nil, err
	}
	resp := &workv1.ListFilesResponse{}
	depth := 1
	if req.GetRecursive() {
		depth = homes.MaxDepth
	}
	err = s.walk(ctx, req.GetAgentId(), req.GetPath(), depth, list.After, func(e homes.Entry) error {
		if len(resp.GetFiles()) == list.Size {
			resp.NextPageToken = list.Next(resp.GetFiles()[list.Size-1].GetPath())
			return homes.ErrStop
		}
		resp.Files = append(resp.Files, homes.Describe(e.Path, e.Info))
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
	budget := search{until: s.deps.Clock.Now().Add(searchTime)}
	err = s.walk(ctx, req.GetAgentId(), req.GetPath(), homes.MaxDepth, "", func(e homes.Entry) error {
		if budget.spent(s.deps.Clock.Now()) {
			resp.Truncated, resp.StoppedAfter = true, budget.last
			return homes.ErrStop
		}
		budget.files++
		if ok, _ := path.Match(req.GetGlob(), path.Base(e.Path)); req.GetGlob() != "" && !ok || !e.Info.Mode().IsRegular() {
			return nil
		}
		content, ok := e.Text()
		budget.bytes += int64(len(content))
		budget.last = e.Path
		if !ok {
			resp.Skipped++
			return nil
		}
		n := 0
		for line := range bytes.SplitSeq(content, []byte("\n")) {
			if n++; n%linesAtOnce == 0 {
				if ctx.Err() != nil {
					return fault.From(ctx.Err())
				}
				yield.Now() // a long search delays no other call
			}
			if !pattern.Match(line) {
				continue
			}
			if len(resp.GetMatches()) == most {
				resp.Truncated = true
				return homes.ErrStop
			}
			text := strings.ToValidUTF8(utf8cut.Chars(strings.TrimSuffix(string(line), "\r"), maxMatchChars), "\uFFFD")
			resp.Matches = append(resp.Matches, &workv1.GrepMatch{Path: e.Path, Line: int32(n), Text: text})
		}
		return nil
	})
	return resp, err
}

// walk checks that the caller may read an agent's home, and visits what is below a path of it; see
// homes.Home.Walk. An empty path is the home itself.
func (s *Service) walk(ctx context.Context, agentID, below string, depth int, after string, visit func(homes.Entry) error) error {
	start := "."
	if below != "" {
		var err error
		if start, err = homes.Path("path", below); err != nil {
			return err
		}
	}
	h, err := s.openHome(ctx, agentID, false)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Walk(ctx, start, depth, after, visit)
}
