package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/blakesmith/ar"
	"github.com/sassoftware/go-rpmutils"
	"github.com/stretchr/testify/require"
)

// rpmArch has the names that RPM systems give to architectures.
var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// packaged is one file of a package.
type packaged struct {
	mode        fs.FileMode
	user, group string
	modified    time.Time
	config      bool // an upgrade keeps what the administrator changed
	data        []byte
}

// checkPackaged compares the files of a package with the table of places and with the files of the repository.
func checkPackaged(t *testing.T, r release, files map[string]packaged) {
	var want []string
	pages, err := r.documents(t.Context())
	require.NoError(t, err)
	for _, at := range withDocuments(pages) {
		want = append(want, at.to)
		f, ok := files[at.to]
		require.True(t, ok, at.to)
		require.Equal(t, at.mode, f.mode, at.to)
		require.Equal(t, "root root", f.user+" "+f.group, at.to)
		require.Equal(t, r.date, f.modified.UTC(), at.to)
		require.Equal(t, strings.HasPrefix(at.to, "/etc/"), f.config, at.to)
		if name, ok := strings.CutPrefix(at.name, "systemd/"); ok {
			source, err := os.ReadFile(filepath.Join(r.repo, "deploy", "systemd", name))
			require.NoError(t, err)
			require.Equal(t, string(source), string(f.data), at.to)
		}
	}
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(files)))
	for _, unit := range []string{"quartet.service", "quartet-worker.service"} {
		command := regexp.MustCompile(`(?m)^ExecStart=(\S+)`).FindSubmatch(files["/usr/lib/systemd/system/"+unit].data)
		require.Len(t, command, 2, unit)
		require.Contains(t, files, string(command[1]), "what %s starts is in the package", unit)
	}
}

// checkScripts compares the scripts of a package with those of the repository, and has the shell read them.
func checkScripts(t *testing.T, r release, scripts map[string]string) {
	for name, file := range map[string]string{
		"postinst": "postinstall.sh", "prerm": "preremove.sh",
		"postrm": "postremove.sh",
	} {
		source, err := os.ReadFile(filepath.Join(r.repo, "deploy", "systemd", file))
		require.NoError(t, err)
		require.Equal(t, strings.TrimSpace(string(source)), strings.TrimSpace(scripts[name]), name)
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(scripts[name])
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
	}
}

// checkDeb reads a Debian package: an ar archive with the version of the format, the control files and the files.
func checkDeb(t *testing.T, r release, raw []byte) {
	parts := map[string][]byte{}
	var order []string
	for archive := ar.NewReader(bytes.NewReader(raw)); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		data, err := io.ReadAll(archive)
		require.NoError(t, err)
		order = append(order, h.Name)
		parts[h.Name] = data
		require.Equal(t, r.date, h.ModTime.UTC(), h.Name)
	}
	require.Equal(t, []string{"debian-binary", "control.tar.gz", "data.tar.gz"}, order)
	require.Equal(t, "2.0\n", string(parts["debian-binary"]))

	control := readTar(t, parts["control.tar.gz"])
	fields := map[string]string{}
	for line := range strings.Lines(string(control["control"].data)) {
		if name, value, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, " ") {
			fields[name] = strings.TrimSpace(value)
		}
	}
	require.Equal(t, "quartet", fields["Package"])
	require.Equal(t, r.version+"-1", fields["Version"])
	require.Equal(t, runtime.GOARCH, fields["Architecture"])
	require.Equal(t, "Durable control plane for long-lived AI agents", fields["Description"])
	require.NotEmpty(t, fields["Maintainer"])
	require.Equal(t, "ca-certificates", fields["Recommends"])
	require.NotContains(t, fields, "Depends", "the program is static")
	scripts := map[string]string{}
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		require.Equal(t, fs.FileMode(0o755), control[name].mode, name)
		scripts[name] = string(control[name].data)
	}
	checkScripts(t, r, scripts)

	config := strings.Fields(string(control["conffiles"].data))
	files := map[string]packaged{}
	for name, f := range readTar(t, parts["data.tar.gz"]) {
		f.config = slices.Contains(config, "/"+name)
		files["/"+name] = f
	}
	checkPackaged(t, r, files)
}

// readTar returns the regular files of a tar.gz, by their names without what means its root.
func readTar(t *testing.T, raw []byte) map[string]packaged {
	out := map[string]packaged{}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	require.NoError(t, err)
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		if h.Typeflag != tar.TypeReg {
			require.Equal(t, byte(tar.TypeDir), h.Typeflag, h.Name)
			continue
		}
		data, err := io.ReadAll(archive)
		require.NoError(t, err)
		out[strings.TrimPrefix(strings.TrimPrefix(h.Name, "."), "/")] = packaged{
			mode: h.FileInfo().Mode(), user: h.Uname, group: h.Gname, modified: h.ModTime, data: data,
		}
	}
}

// checkRPM reads a package for RPM systems.
func checkRPM(t *testing.T, r release, raw []byte) {
	p, err := rpmutils.ReadRpm(bytes.NewReader(raw))
	require.NoError(t, err)
	name, err := p.Header.GetNEVRA()
	require.NoError(t, err)
	require.Equal(t, "quartet "+r.version+" 1 "+rpmArch[runtime.GOARCH], fmt.Sprint(name.Name, " ", name.Version, " ",
		name.Release, " ", name.Arch))
	text := func(tag int) string {
		s, err := p.Header.GetString(tag)
		require.NoError(t, err)
		return s
	}
	require.Equal(t, "Apache-2.0", text(rpmutils.LICENSE))
	require.Equal(t, "localhost", text(rpmutils.BUILDHOST))
	built, err := p.Header.GetInt(rpmutils.BUILDTIME)
	require.NoError(t, err)
	require.Equal(t, r.date.Unix(), int64(built))
	checkScripts(t, r, map[string]string{
		"postinst": text(rpmutils.POSTIN), "prerm": text(rpmutils.PREUN),
		"postrm": text(rpmutils.POSTUN),
	})

	list, err := p.Header.GetFiles()
	require.NoError(t, err)
	files := map[string]packaged{}
	for _, f := range list {
		if f.Mode()&syscall.S_IFMT == syscall.S_IFDIR {
			continue
		}
		files[f.Name()] = packaged{
			mode: fs.FileMode(f.Mode() & 0o777), user: f.UserName(), group: f.GroupName(),
			modified: time.Unix(int64(f.Mtime()), 0),
			config: f.Flags()&(rpmutils.RPMFILE_CONFIG|rpmutils.RPMFILE_NOREPLACE) == rpmutils.RPMFILE_CONFIG|
				rpmutils.RPMFILE_NOREPLACE,
		}
	}
	payload, err := p.PayloadReaderExtended()
	require.NoError(t, err)
	for {
		f, err := payload.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if of, ok := files[f.Name()]; ok {
			of.data, err = io.ReadAll(payload)
			require.NoError(t, err)
			files[f.Name()] = of
		}
	}
	checkPackaged(t, r, files)
}

// startAsInstalled starts the program of an archive by the command line and the settings that the packages install.
// Variables win over the file: the data and the ports are those of the test.
func startAsInstalled(t *testing.T, dir string) {
	unit, err := os.ReadFile(filepath.Join(dir, "systemd", "quartet.service"))
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindSubmatch(unit)
	require.Len(t, line, 2)
	args := strings.Fields(string(line[1]))
	i := slices.Index(args, "/etc/quartet/quartet.yaml")
	require.Positive(t, i)
	args[i] = filepath.Join(dir, "systemd", "quartet.yaml")

	grpc, rest := freePort(t), freePort(t)
	program, data := filepath.Join(dir, "quartet"), t.TempDir()
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + data, "QUARTET_DATA_DIR=" + data, "QUARTET_GRPC_ADDR=" +
		grpc, "QUARTET_HTTP_ADDR=" + rest}
	cmd := exec.CommandContext(t.Context(), program, args[1:]...)
	var log bytes.Buffer
	cmd.Env, cmd.Stderr, cmd.Stdout = env, &log, &log
	require.NoError(t, cmd.Start())
	if !answers(t, "http://"+rest+"/readyz") {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		require.Fail(t, "the server is not ready", log.String())
	}
	client := func(args ...string) (string, error) {
		c := exec.CommandContext(t.Context(), program, append(args, "--address", grpc)...)
		c.Env = env
		out, err := c.CombinedOutput()
		return string(out), err
	}
	out, created := client("key", "create", "root", "--role", "installation_admin", "--bootstrap")
	said, anonymous := client("agent", "list")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "%s", &log)
	require.NoError(t, created, out)
	require.Error(t, anonymous, "the settings demand a credential: %s", said)
	require.Contains(t, said, "UNAUTHENTICATED")
}

// freePort returns an address of loopback at which nothing listens.
func freePort(t *testing.T) string {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// answers reports whether a page answers 200 within a minute.
func answers(t *testing.T, url string) bool {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		require.NoError(t, err)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}
