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
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
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

// makeRelease makes a release of this machine's platform in a directory of its own.
func makeRelease(t *testing.T) (release, map[string][]byte) {
	r := release{
		repo: repository(t), out: filepath.Join(t.TempDir(), "dist"), platforms: []string{"linux/" + runtime.GOARCH}, goCommand: "go",
		tags: "grpcnotrace", ldflags: "-s -w", dirty: true, log: io.Discard,
	}
	require.NoError(t, r.run(t.Context()))
	return r, contents(t, r.out)
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
	require.Equal(t, "linux", runtime.GOOS, "the packages are installed and run")
	r, first := makeRelease(t)
	base := "quartet_" + r.version + "_linux_" + runtime.GOARCH
	for _, name := range []string{base + ".tar.gz", base + ".cdx.json", "Dockerfile", mark, "quartet_" + r.version + "-1_" + runtime.GOARCH + ".deb"} {
		require.Contains(t, first, name)
	}
	root := t.TempDir()
	files := unpack(t, first[base+".tar.gz"], root)
	program := filepath.Join(root, base, "quartet")

	t.Run("two runs of a commit are the same bytes", func(t *testing.T) {
		_, second := makeRelease(t)
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
		for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "completions/quartet.bash", "completions/_quartet", "systemd/quartet.service", "sbom.cdx.json"} {
			h := files[base+"/"+name]
			require.NotNil(t, h, name)
			require.Equal(t, r.date, h.ModTime.UTC())
			require.NotZero(t, h.Size)
		}
		var v struct{ Version, Revision, Date, Platform string }
		require.NoError(t, json.Unmarshal([]byte(output(t, program, "version", "-o", "json")), &v))
		require.Equal(t, r.version, v.Version)
		require.Equal(t, r.revision, v.Revision)
		require.Equal(t, r.date.Format(time.RFC3339), v.Date)
		require.Equal(t, "linux/"+runtime.GOARCH, v.Platform)
	})

	t.Run("the SBOM names the modules of the binary", func(t *testing.T) {
		doc := new(cyclonedx.BOM)
		require.NoError(t, cyclonedx.NewBOMDecoder(bytes.NewReader(first[base+".cdx.json"]), cyclonedx.BOMFileFormatJSON).Decode(doc))
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

	t.Run("the deb", func(t *testing.T) { checkDeb(t, r) })
}

// checkDeb unpacks the Debian package as dpkg does, and starts what it installs with its own settings.
func checkDeb(t *testing.T, r release) {
	deb := filepath.Join(r.out, "quartet_"+r.version+"-1_"+runtime.GOARCH+".deb")
	list := output(t, "dpkg-deb", "-c", deb)
	for _, at := range places {
		require.Contains(t, list, " ."+at.to+"\n")
	}
	require.Contains(t, output(t, "dpkg-deb", "-f", deb, "Package", "Version", "Architecture"), "Version: "+r.version)
	dir := t.TempDir()
	output(t, "dpkg-deb", "-e", deb, filepath.Join(dir, "DEBIAN"))
	conffiles, err := os.ReadFile(filepath.Join(dir, "DEBIAN", "conffiles"))
	require.NoError(t, err)
	require.Contains(t, string(conffiles), "/etc/quartet/quartet.yaml")
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		output(t, "sh", "-n", filepath.Join(dir, "DEBIAN", script))
	}
	output(t, "dpkg-deb", "-x", deb, dir)
	info, err := os.Stat(filepath.Join(dir, "etc", "quartet", "quartet.yaml"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o640), info.Mode().Perm())

	// Environment variables win over the file: the data and the ports are those of the test.
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	program := filepath.Join(dir, "usr", "bin", "quartet")
	cmd := exec.CommandContext(t.Context(), program, "serve", "all", "--config", filepath.Join(dir, "etc", "quartet", "quartet.yaml"))
	var log bytes.Buffer
	cmd.Stderr, cmd.Stdout = &log, &log
	data := t.TempDir()
	env := append(os.Environ(), "QUARTET_DATA_DIR="+data, "QUARTET_GRPC_ADDR="+address, "QUARTET_HTTP_ADDR=127.0.0.1:0", "HOME="+data)
	cmd.Env = env
	require.NoError(t, cmd.Start())
	client := func(args ...string) (string, error) {
		c := exec.CommandContext(t.Context(), program, append(args, "--address", address)...)
		c.Env = env
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if !await(t, func() bool {
		_, err := client("key", "create", "root", "--role", "installation_admin", "--bootstrap")
		return err == nil
	}) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		require.Fail(t, "the server of the package does not answer", log.String())
	}
	out, err := client("whoami")
	require.Error(t, err, "the settings of the package demand a credential: %s", out)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "%s", &log)
}

// await returns whether a condition becomes true within a minute.
func await(t *testing.T, condition func() bool) bool {
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			return false
		case <-t.Context().Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

func TestZip(t *testing.T) {
	r := release{out: t.TempDir(), log: io.Discard, date: time.Unix(1_700_000_000, 0).UTC()}
	require.NoError(t, r.zip("quartet_1", []file{{"quartet.exe", 0o755, []byte("MZ")}, {"completions/quartet.ps1", 0o644, []byte("x")}}))
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
