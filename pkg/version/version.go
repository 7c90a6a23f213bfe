// Package version describes the build. The version is in the file VERSION of this directory and
// nowhere else, so that a clone without tags has it too.
package version

import (
	_ "embed"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

//go:embed VERSION
var file string

// revision and date are set by the linker where the build has no repository (an image, a package):
// -ldflags "-X quartet/pkg/version.revision=… -X quartet/pkg/version.date=…".
// Otherwise they are taken from the build information of the go command.
var revision, date string

// Info describes a build.
type Info struct {
	Version  string `json:"version"`            // such as 0.1.0
	Revision string `json:"revision,omitempty"` // the full hash of the commit, with "+dirty" if files differed from it
	Date     string `json:"date,omitempty"`     // of that commit, RFC 3339, UTC
	Go       string `json:"go"`                 // the Go release it was built with
	Platform string `json:"platform"`           // such as linux/amd64
}

// Get returns the description of this build.
func Get() Info {
	recorded, _ := debug.ReadBuildInfo()
	return describe(strings.TrimSpace(file), revision, date, recorded)
}

func describe(version, revision, date string, recorded *debug.BuildInfo) Info {
	out := Info{Version: version, Revision: revision, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" +
		runtime.GOARCH}
	if recorded == nil || revision != "" {
		return out
	}
	dirty := false
	for _, s := range recorded.Settings {
		switch s.Key {
		case "vcs.revision":
			out.Revision = s.Value
		case "vcs.time":
			out.Date = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty && out.Revision != "" {
		out.Revision += "+dirty"
	}
	return out
}

// String returns the short form for logs, metrics and backups: the version and the first 12
// characters of the revision, such as 0.1.0-4fb5b58a2c11.
func (i Info) String() string {
	if i.Revision == "" {
		return i.Version
	}
	short, dirty := strings.CutSuffix(i.Revision, "+dirty")
	out := i.Version + "-" + short[:min(12, len(short))]
	if dirty {
		out += "+dirty"
	}
	return out
}

// Long returns the form for people: version, revision, date, build and licence, each on a line
// without a newline after the last one. A revision or date that is not known is "unknown".
func (i Info) Long() string {
	orUnknown := func(s string) string {
		if s == "" {
			return "unknown"
		}
		return s
	}
	return fmt.Sprintf("quartet %s\nrevision  %s\ndate      %s\nbuilt     %s, %s\nlicence   Apache-2.0",
		i.Version, orUnknown(i.Revision), orUnknown(i.Date), i.Go, i.Platform)
}
