package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/require"
)

// repository returns the root of the repository.
func repository(t *testing.T) string {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	return root
}

// output runs a program and returns what it writes to stdout.
func output(t *testing.T, name string, args ...string) string {
	cmd := exec.CommandContext(t.Context(), name, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s %q: %s", name, args, &errs)
	return string(out)
}

// makeRelease makes a release of a repository for this machine's platform.
func makeRelease(t *testing.T, repo string) (release, map[string][]byte) {
	r := release{
		repo: repo, out: filepath.Join(t.TempDir(), "dist"), platforms: []string{"linux/" + runtime.GOARCH},
		goCommand: "go", tags: "grpcnotrace", ldflags: "-s -w", dirty: true, log: io.Discard,
	}
	require.NoError(t, r.run(t.Context()))
	return r, contents(t, r.out)
}

// elsewhere returns a clone of the repository in another directory, with the files of this one as they are, committed
// or not.
func elsewhere(t *testing.T) string {
	from, to := repository(t), filepath.Join(t.TempDir(), "another", "place")
	output(t, "git", "clone", "--quiet", "--no-checkout", from, to)
	// the index is that of the commit, so that the same files differ from it
	output(t, "git", "-C", to, "reset", "--quiet")
	for name := range strings.SplitSeq(output(t, "git", "-C", from, "ls-files", "-z"), "\x00") {
		info, err := os.Lstat(filepath.Join(from, name))
		if name == "" || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(filepath.Join(from, name))
			require.NoError(t, err)
			require.NoError(t, os.Symlink(target, filepath.Join(to, name)))
			continue
		}
		data, err := os.ReadFile(filepath.Join(from, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(to, name), data, info.Mode().Perm()))
	}
	return to
}

// contents returns the files of a directory.
func contents(t *testing.T, dir string) map[string][]byte {
	out := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		out[e.Name()] = raw
	}
	return out
}

// unpack writes the files of a tar.gz below dir and returns their headers.
func unpack(t *testing.T, raw []byte, dir string) map[string]*tar.Header {
	out := map[string]*tar.Header{}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	require.NoError(t, err)
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		require.True(t, filepath.IsLocal(h.Name), h.Name)
		out[h.Name] = h
		to := filepath.Join(dir, h.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		data, err := io.ReadAll(archive)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, data, h.FileInfo().Mode()))
	}
}

func TestRelease(t *testing.T) {
	require.Equal(t, "linux", runtime.GOOS, "the program is run")
	r, first := makeRelease(t, repository(t))
	base := "quartet_" + r.version + "_linux_" + runtime.GOARCH
	deb, rpm := "quartet_"+r.version+"-1_"+runtime.GOARCH+".deb", "quartet-"+r.version+"-1."+rpmArch[runtime.GOARCH]+
		".rpm"
	root := t.TempDir()
	archive := unpack(t, first[base+".tar.gz"], root)
	program := filepath.Join(root, base, "quartet")

	t.Run("its files", func(t *testing.T) {
		require.ElementsMatch(t, []string{base + ".tar.gz", base + ".cdx.json", deb, rpm, "Dockerfile", mark},
			slices.Collect(maps.Keys(first)))
	})

	t.Run("the same commit in another directory makes the same bytes", func(t *testing.T) {
		other, second := makeRelease(t, elsewhere(t))
		require.Equal(t, r.revision, other.revision)
		require.Len(t, second, len(first))
		for name, data := range first {
			require.Equal(t, sha256.Sum256(data), sha256.Sum256(second[name]), name)
		}
	})

	t.Run("the checksums are those of all files", func(t *testing.T) {
		lines := strings.Split(strings.TrimSpace(string(first[mark])), "\n")
		require.Len(t, lines, len(first)-1)
		for _, line := range lines {
			sum, name, ok := strings.Cut(line, "  ")
			require.True(t, ok)
			require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(first[name])), sum, name)
		}
	})

	t.Run("the archive has the program and what belongs to it", func(t *testing.T) {
		var names []string
		for name, h := range archive {
			names = append(names, strings.TrimPrefix(name, base+"/"))
			require.Equal(t, r.date, h.ModTime.UTC())
			require.Zero(t, h.Uid+h.Gid)
			require.NotZero(t, h.Size)
			mode := int64(0o644)
			if name == base+"/quartet" || strings.HasSuffix(name, ".sh") {
				mode = 0o755
			}
			require.Equal(t, mode, h.Mode, name)
		}
		require.ElementsMatch(t, append(inEveryArchive(t, r, "quartet"), inArchivesForLinux...), names)
		var v struct{ Version, Revision, Date, Platform string }
		require.NoError(t, json.Unmarshal([]byte(output(t, program, "version", "-o", "json")), &v))
		require.Equal(t, r.version, v.Version)
		require.Equal(t, r.revision, v.Revision)
		require.Equal(t, r.date.Format(time.RFC3339), v.Date)
		require.Equal(t, "linux/"+runtime.GOARCH, v.Platform)
	})

	t.Run("its pages are for who has the archive", func(t *testing.T) { checkPages(t, filepath.Join(root, base)) })

	t.Run("the SBOM names the modules of the binary", func(t *testing.T) {
		doc := new(cyclonedx.BOM)
		require.NoError(t, cyclonedx.NewBOMDecoder(bytes.NewReader(first[base+".cdx.json"]),
			cyclonedx.BOMFileFormatJSON).Decode(doc))
		binary, err := os.ReadFile(program)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(binary)), (*doc.Metadata.Component.Hashes)[0].Value)
		versions := map[string]string{}
		for _, c := range *doc.Components {
			versions[c.Name] = c.Version
			require.NotEmpty(t, c.PackageURL)
		}
		pins, err := os.ReadFile(filepath.Join(r.repo, "go.mod"))
		require.NoError(t, err)
		for _, m := range []string{"google.golang.org/grpc", "github.com/nats-io/nats-server/v2", "filippo.io/age"} {
			require.Contains(t, string(pins), m+" "+versions[m]+"\n")
		}
		require.Equal(t, runtime.Version(), versions["std"])
		require.NotContains(t, versions, "github.com/stretchr/testify", "only what is linked")
	})

	t.Run("the image is made of the archive", func(t *testing.T) {
		require.Contains(t, string(first["Dockerfile"]), "\nARG VERSION="+r.version+"\n")
		require.NotContains(t, string(first["Dockerfile"]), "\nARG VERSION\n")
	})

	// What is assembled for other systems, with this test in place of their program: make platforms compiles that.
	t.Run("archives for other systems", func(t *testing.T) {
		self, err := os.Executable()
		require.NoError(t, err)
		binary, err := os.ReadFile(self)
		require.NoError(t, err)
		for _, p := range []platform{{"windows", "amd64"}, {"darwin", "arm64"}} {
			o, work := r, t.TempDir()
			o.out = t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(work, p.os+"-"+p.arch), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(work, p.os+"-"+p.arch, p.binary()), binary, 0o700))
			require.NoError(t, o.make(t.Context(), work, p, map[string][]byte{
				"bash": {1}, "zsh": {1}, "fish": {1},
				"powershell": {1},
			}))
			base := "quartet_" + r.version + "_" + p.os + "_" + p.arch
			var names []string
			if p.os == "windows" {
				z, err := zip.OpenReader(filepath.Join(o.out, base+".zip"))
				require.NoError(t, err)
				for _, f := range z.File {
					names = append(names, strings.TrimPrefix(f.Name, base+"/"))
				}
				require.NoError(t, z.Close())
			} else {
				for name := range unpack(t, contents(t, o.out)[base+".tar.gz"], t.TempDir()) {
					names = append(names, strings.TrimPrefix(name, base+"/"))
				}
			}
			require.ElementsMatch(t, inEveryArchive(t, o, p.binary()), names)
		}
	})

	t.Run("the deb", func(t *testing.T) { checkDeb(t, r, first[deb]) })
	t.Run("the rpm", func(t *testing.T) { checkRPM(t, r, first[rpm]) })
	t.Run("the program starts with the settings of the packages", func(t *testing.T) {
		startAsInstalled(t, filepath.Join(root, base))
	})
}

// inEveryArchive returns the names of the files that each archive has.
func inEveryArchive(t *testing.T, r release, program string) []string {
	names := []string{
		program, "README.md", "sbom.cdx.json", "completions/quartet.bash", "completions/_quartet",
		"completions/quartet.fish", "completions/quartet.ps1",
		"LICENSE", "CHANGELOG.md", "SECURITY.md", "llms.txt", "deploy/openapi/quartet.openapi.json",
	}
	for _, pattern := range []string{
		"docs/*.md", "docs/guides/*.md", "docs/pictures/*",
		"examples/typescript-runner/*.json", "examples/typescript-runner/*.md", "examples/typescript-runner/src/*.ts",
	} {
		// not what tests have made there
		found := strings.Fields(output(t, "git", "-C", r.repo, "ls-files", "--", ":(glob)"+pattern))
		require.NotEmpty(t, found, pattern)
		names = append(names, found...)
	}
	return names
}

// inArchivesForLinux are the names of the files that only these have.
var inArchivesForLinux = []string{
	"systemd/quartet.service", "systemd/quartet-worker.service", "systemd/quartet.yaml", "systemd/worker.env",
	"systemd/sysusers.conf",
	"systemd/postinstall.sh", "systemd/preremove.sh", "systemd/postremove.sh",
}

func TestZip(t *testing.T) {
	r := release{out: t.TempDir(), log: io.Discard, date: time.Unix(1_700_000_000, 0).UTC()}
	require.NoError(t,
		r.zip("quartet_1", []file{
			{"quartet.exe", 0o755, []byte("MZ")},
			{"completions/quartet.ps1", 0o644, []byte("x")},
		}))
	z, err := zip.OpenReader(filepath.Join(r.out, "quartet_1.zip"))
	require.NoError(t, err)
	defer z.Close()
	require.Len(t, z.File, 2)
	require.Equal(t, "quartet_1/quartet.exe", z.File[0].Name)
	require.Equal(t, r.date, z.File[0].Modified.UTC())
	data, err := fs.ReadFile(z, "quartet_1/quartet.exe")
	require.NoError(t, err)
	require.Equal(t, "MZ", string(data))
}

// Nothing but an earlier release is removed.
func TestADirectoryWithOtherFilesIsLeftAlone(t *testing.T) {
	r := release{out: t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(r.out, "thesis.txt"), []byte("x"), 0o600))
	require.ErrorContains(t, r.empty(), "it is not a release")
	require.FileExists(t, filepath.Join(r.out, "thesis.txt"))
	require.NoError(t, os.WriteFile(filepath.Join(r.out, mark), nil, 0o600))
	require.NoError(t, r.empty())
	require.NoFileExists(t, filepath.Join(r.out, "thesis.txt"))
}

func TestAnUnknownPlatformIsRefused(t *testing.T) {
	for _, name := range []string{"plan9/amd64", "linux", "windows/arm64"} {
		_, err := parsePlatform(name)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "linux/amd64")
	}
	p, err := parsePlatform("windows/amd64")
	require.NoError(t, err)
	require.Equal(t, "quartet.exe", p.binary())
}
