package homes

import (
	"bytes"
	"context"
	"path"
	"regexp"
	"strings"
	"time"

	"quartet/pkg/fault"
	workv1 "quartet/pkg/pb/quartet/work/v1"
	"quartet/pkg/utf8cut"
	"quartet/pkg/yield"
)

const (
	maxMatchChars = 500
	// SearchBytes is how many bytes a search reads at most, of searchFiles files and for searchTime; see
	// GrepFilesResponse.stopped_after. A home has any number of files.
	SearchBytes = 64 << 20
	searchFiles = 20_000
	searchTime  = 5 * time.Second
	// linesAtOnce is after how many lines a search looks whether its caller has left.
	linesAtOnce = 1000
)

// Search looks for lines in the text files of a home.
type Search struct {
	Pattern *regexp.Regexp
	Glob    string // of the names of the files; empty: all
	Most    int    // matches
	Now     func() time.Time
	// Found is what was found so far.
	Found workv1.GrepFilesResponse

	files int
	bytes int64
	until time.Time
	last  string // the last file that was visited
}

// spent reports whether a search has read as many files or bytes, or taken as long, as it may. The time begins with
// the first call.
func (s *Search) spent() bool {
	if s.until.IsZero() {
		s.until = s.Now().Add(searchTime)
	}
	return s.files >= searchFiles || s.bytes >= SearchBytes || !s.Now().Before(s.until)
}

// Visit searches a file. It returns ErrStop when nothing more is to be searched.
func (s *Search) Visit(ctx context.Context, e Entry) error {
	if s.spent() {
		s.Found.Truncated, s.Found.StoppedAfter = true, s.last
		return ErrStop
	}
	s.files++
	s.last = e.Path
	if ok, _ := path.Match(s.Glob, path.Base(e.Path)); s.Glob != "" && !ok || !e.Info.Mode().IsRegular() {
		return nil
	}
	content, ok := e.Text()
	s.bytes += int64(len(content))
	if !ok {
		s.Found.Skipped++
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
		if !s.Pattern.Match(line) {
			continue
		}
		if len(s.Found.GetMatches()) == s.Most {
			s.Found.Truncated = true
			return ErrStop
		}
		text := strings.ToValidUTF8(utf8cut.Chars(strings.TrimSuffix(string(line), "\r"), maxMatchChars), "\uFFFD")
		s.Found.Matches = append(s.Found.Matches, &workv1.GrepMatch{Path: e.Path, Line: int32(n), Text: text})
	}
	return nil
}
