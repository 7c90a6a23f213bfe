package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

// docDir is the directory in which a package has the documents of the archive, with the same names.
const docDir = "/usr/share/doc/quartet/"

// place says where a package has a file of the archive: name is its name in the archive, to its path on the system.
type place struct {
	name, to, kind, group string
	mode                  os.FileMode
}

// places are the places of the files of an archive in a package, except for the documents. An upgrade of the package
// keeps files in /etc that the administrator has changed.
var places = []place{
	{"quartet", "/usr/bin/quartet", "", "root", 0o755},
	{"systemd/quartet.service", "/usr/lib/systemd/system/quartet.service", "", "root", 0o644},
	{"systemd/quartet-worker.service", "/usr/lib/systemd/system/quartet-worker.service", "", "root", 0o644},
	{"systemd/sysusers.conf", "/usr/lib/sysusers.d/quartet.conf", "", "root", 0o644},
	{"systemd/quartet.yaml", "/etc/quartet/quartet.yaml", files.TypeConfigNoReplace, "root", 0o640},
	{"systemd/worker.env", "/etc/quartet/worker.env", files.TypeConfigNoReplace, "root", 0o644},
	{"completions/quartet.bash", "/usr/share/bash-completion/completions/quartet", "", "root", 0o644},
	{"completions/_quartet", "/usr/share/zsh/vendor-completions/_quartet", "", "root", 0o644},
	{"completions/quartet.fish", "/usr/share/fish/vendor_completions.d/quartet.fish", "", "root", 0o644},
	{"LICENSE", docDir + "copyright", "", "root", 0o644},
	{"sbom.cdx.json", docDir + "sbom.cdx.json", "", "root", 0o644},
}

// withDocuments returns places and the places of the documents in pages.
func withDocuments(pages []file) []place {
	all := slices.Clone(places)
	for _, f := range pages {
		all = append(all, place{f.name, docDir + f.name, "", "root", 0o644})
	}
	return all
}

// packages writes a deb and an rpm with files of a platform's archive. all are the files of the archive, and pages
// the documents among them. It writes temporary files below work.
func (r *release) packages(work string, p platform, all, pages []file) error {
	places := withDocuments(pages)
	dir := filepath.Join(work, "package-"+p.arch)
	byName := map[string]file{}
	for _, f := range all {
		byName[f.name] = f
		to := filepath.Join(dir, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(to, f.data, f.mode); err != nil {
			return err
		}
	}
	from := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	// The package makers write into what they are given, so each gets its own.
	contents := func() files.Contents {
		out := files.Contents{{Destination: "/etc/quartet", Type: files.TypeDir, FileInfo: &files.ContentFileInfo{
			Mode: 0o755, MTime: r.date,
		}}}
		for _, at := range places {
			out = append(out, &files.Content{
				Source: from(at.name), Destination: at.to, Type: at.kind, FileInfo: &files.ContentFileInfo{
					Owner: "root", Group: at.group, Mode: at.mode, MTime: r.date,
				},
			})
		}
		return out
	}
	for _, at := range places {
		if _, ok := byName[at.name]; !ok {
			return fmt.Errorf("package: %s is not among the files", at.name)
		}
	}
	for _, format := range []string{"deb", "rpm"} {
		info := nfpm.WithDefaults(&nfpm.Info{
			Name: "quartet", Arch: p.arch, Platform: p.os, Version: r.version, Release: "1", Section: "admin",
			Priority: "optional", License: "Apache-2.0",
			Maintainer: "The Quartet authors <quartet@localhost>", MTime: r.date, DisableGlobbing: true,
			Description: "Durable control plane for long-lived AI agents\n Stores agents, their work items, tasks, " +
				"boards and waits: what was answered is on disk.\n One static binary: server, command line, MCP, " +
				"runner and worker.",
			Overridables: nfpm.Overridables{
				Contents: contents(), Recommends: []string{"ca-certificates"},
				Scripts: nfpm.Scripts{
					PostInstall: from("systemd/postinstall.sh"),
					PreRemove:   from("systemd/preremove.sh"), PostRemove: from("systemd/postremove.sh"),
				},
				RPM: nfpm.RPM{BuildHost: "localhost", Summary: "Durable control plane for long-lived AI agents"},
			},
		})
		maker, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		if err := nfpm.PrepareForPackager(info, format); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		var out bytes.Buffer
		if err := maker.Package(info, &out); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		if err := r.write(maker.ConventionalFileName(info), out.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
