package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// supported are the platforms of docs/platforms.md.
var supported = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"}

// mark is the name of the file by which a directory is recognised as a release that this program wrote. Only such a
// directory is emptied.
const mark = "SHA256SUMS"

// release has the options of one run, and what identify found.
type release struct {
	repo, out     string
	platforms     []string
	goCommand     string
	tags, ldflags string
	dirty         bool
	log           io.Writer

	version  string    // such as 0.1.0
	revision string    // the commit, with +dirty if files differ
	date     time.Time // of the commit
}

// platform is one operating system and architecture.
type platform struct{ os, arch string }

// binary returns the name of the program.
func (p platform) binary() string {
	if p.os == "windows" {
		return "quartet.exe"
	}
	return "quartet"
}

// file is a file of an archive or a package.
type file struct {
	name string // with slashes
	mode fs.FileMode
	data []byte
}

// parsePlatform returns the platform with a name such as linux/amd64, which must be one of supported.
func parsePlatform(name string) (platform, error) {
	goos, goarch, _ := strings.Cut(name, "/")
	if !slices.Contains(supported, name) {
		return platform{}, fmt.Errorf("platform %q is not one of %s", name, strings.Join(supported, ", "))
	}
	return platform{goos, goarch}, nil
}

// run makes the release.
func (r *release) run(ctx context.Context) error {
	var platforms []platform
	for _, name := range r.platforms {
		p, err := parsePlatform(name)
		if err != nil {
			return err
		}
		platforms = append(platforms, p)
	}
	if err := r.identify(ctx); err != nil {
		return err
	}
	if err := r.empty(); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "quartet-release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // if this fails, files are left in the system's temporary directory
	shells, err := r.completions(ctx, work)
	if err != nil {
		return err
	}
	for _, p := range platforms {
		if err := r.make(ctx, work, p, shells); err != nil {
			return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
		}
	}
	if err := r.images(); err != nil {
		return err
	}
	return r.sums()
}

// identify sets version, revision and date. It returns an error if files differ from the commit, unless dirty is set.
func (r *release) identify(ctx context.Context) error {
	raw, err := os.ReadFile(filepath.Join(r.repo, "pkg", "version", "VERSION"))
	if err != nil {
		return fmt.Errorf("%w; give the repository with -repo", err)
	}
	r.version = strings.TrimSpace(string(raw))
	if r.revision, err = r.git(ctx, "rev-parse", "HEAD"); err != nil {
		return err
	}
	seconds, err := r.git(ctx, "show", "-s", "--format=%ct", "HEAD")
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("date of the commit: %w", err)
	}
	r.date = time.Unix(n, 0).UTC()
	changed, err := r.git(ctx, "status", "--porcelain", "--untracked-files=no")
	if err != nil || changed == "" {
		return err
	}
	if !r.dirty {
		return fmt.Errorf("files differ from the commit:\n%s\ncommit them, or give -dirty for a release that says so",
			changed)
	}
	r.revision += "+dirty"
	return nil
}

// git runs a git command in the repository and returns its output without white space around it.
func (r *release) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", r.repo}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(errs.Bytes()))
	}
	return string(bytes.TrimSpace(out)), nil
}

// empty creates the directory of the release, or empties it if an earlier run wrote it. It returns an error if the
// directory has other files.
func (r *release) empty() error {
	entries, err := os.ReadDir(r.out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(r.out, mark)); err != nil {
			return fmt.Errorf("%s has files, and none of them is %s: it is not a release; give another directory "+
				"with -out", r.out, mark)
		}
		if err := os.RemoveAll(r.out); err != nil {
			return err
		}
	}
	return os.MkdirAll(r.out, 0o755) //nolint:gosec // what is published may be read
}

// build compiles the program for a platform, unless that was done before, and returns its path below work.
func (r *release) build(ctx context.Context, work string, p platform) (string, error) {
	to, err := filepath.Abs(filepath.Join(work, p.os+"-"+p.arch, p.binary()))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	ldflags := fmt.Sprintf("%s -X quartet/pkg/version.revision=%s -X quartet/pkg/version.date=%s", r.ldflags,
		r.revision, r.date.Format(time.RFC3339))
	// Without -buildvcs: revision and date are given, so that a clone and an archive make the same bytes.
	cmd := exec.CommandContext(ctx, r.goCommand, "build", "-trimpath", "-buildvcs=false", "-tags", r.tags, "-ldflags",
		ldflags, "-o", to, "./cmd/quartet")
	cmd.Dir = r.repo
	cmd.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return to, nil
}

// completions builds the program for this machine, and returns the completion scripts that it prints, by shell.
func (r *release) completions(ctx context.Context, work string) (map[string][]byte, error) {
	program, err := r.build(ctx, work, platform{runtime.GOOS, runtime.GOARCH})
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		cmd := exec.CommandContext(ctx, program, "completion", shell)
		cmd.Env = []string{"HOME=" + work, "PATH=" + os.Getenv("PATH")} // without the settings of this user
		text, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("quartet completion %s: %w", shell, err)
		}
		out[shell] = text
	}
	return out, nil
}

// make writes the files of one platform: the archive, the SBOM and, for Linux, the packages.
func (r *release) make(ctx context.Context, work string, p platform, shells map[string][]byte) error {
	program, err := r.build(ctx, work, p)
	if err != nil {
		return err
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	bill, err := r.bill(p, program, binary)
	if err != nil {
		return fmt.Errorf("SBOM: %w", err)
	}
	base := "quartet_" + r.version + "_" + p.os + "_" + p.arch
	if err := r.write(base+".cdx.json", bill); err != nil {
		return err
	}
	files := []file{{p.binary(), 0o755, binary}, {"sbom.cdx.json", 0o644, bill}}
	pages, err := r.documents(ctx)
	if err != nil {
		return err
	}
	files = append(files, pages...)
	for shell, name := range map[string]string{
		"bash": "quartet.bash", "zsh": "_quartet", "fish": "quartet.fish",
		"powershell": "quartet.ps1",
	} {
		files = append(files, file{"completions/" + name, 0o644, shells[shell]})
	}
	if p.os == "linux" {
		units, err := r.read("deploy/systemd", "systemd")
		if err != nil {
			return err
		}
		files = append(files, units...)
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	if p.os == "windows" {
		err = r.zip(base, files)
	} else {
		err = r.tar(base, files)
	}
	if err == nil && p.os == "linux" {
		err = r.packages(work, p, files, pages)
	}
	return err
}

// read returns the files of the directory dir of the repository, with as in place of dir in their names.
func (r *release) read(dir, as string) ([]file, error) {
	entries, err := os.ReadDir(filepath.Join(r.repo, filepath.FromSlash(dir)))
	if err != nil {
		return nil, err
	}
	var out []file
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(r.repo, filepath.FromSlash(dir), e.Name()))
		if err != nil {
			return nil, err
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(e.Name(), ".sh") {
			mode = 0o755
		}
		out = append(out, file{as + "/" + e.Name(), mode, data})
	}
	return out, nil
}

// images writes the Dockerfile, with the version set. The images are built from it and from the archives beside it.
func (r *release) images() error {
	raw, err := os.ReadFile(filepath.Join(r.repo, "deploy", "release", "Dockerfile"))
	if err != nil {
		return err
	}
	if !bytes.Contains(raw, []byte("\nARG VERSION\n")) {
		return errors.New("deploy/release/Dockerfile has no line ARG VERSION")
	}
	return r.write("Dockerfile", bytes.ReplaceAll(raw, []byte("\nARG VERSION\n"),
		[]byte("\nARG VERSION="+r.version+"\n")))
}

// sums writes mark, which has the checksums of all other files in the form that sha256sum -c reads. It must be called
// when these are complete.
func (r *release) sums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, e := range entries { // in order of their names
		data, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	return r.write(mark, []byte(text.String()))
}

// write writes a file of the release, and prints its size and name to r.log.
func (r *release) write(name string, data []byte) error {
	if err := os.WriteFile(filepath.Join(r.out, name), data, 0o644); err != nil { //nolint:gosec // what is published may be read
		return err
	}
	_, err := fmt.Fprintf(r.log, "%10d  %s\n", len(data), name)
	return err
}
