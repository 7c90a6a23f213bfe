package work

import (
	"context"
	"path"
	"regexp"

	"quartet/pkg/fault"
	"quartet/pkg/page"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/services/work/homes"
)

const (
	maxPatternChars = 1000
	defaultMatches  = 100
	maxMatches      = 500
)

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
	limit := int(req.GetMaxMatches())
	if limit < 0 || limit > maxMatches {
		return nil, fault.LimitExceeded.Newf("max_matches is %d; it must be 0 to %d", limit, maxMatches).
			WithField("max_matches", "must be 0 to 500")
	}
	if limit == 0 {
		limit = defaultMatches
	}
	search := homes.Search{Pattern: pattern, Glob: req.GetGlob(), Most: limit, Now: s.deps.Clock.Now}
	err = s.walk(ctx, req.GetAgentId(), req.GetPath(), homes.MaxDepth, "", func(e homes.Entry) error {
		return search.Visit(ctx, e)
	})
	return &search.Found, err
}

// walk checks that the caller may read an agent's home, and visits what is below the directory at the path below, or
// the file at that path; see homes.Home.Walk. An empty path is the home itself.
func (s *Service) walk(ctx context.Context, agentID, below string, depth int, after string,
	visit func(homes.Entry) error,
) error {
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
