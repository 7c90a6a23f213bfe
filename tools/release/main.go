// Command release makes the files of a version: an archive for each platform, packages for Debian and RPM systems, a
// list of the modules in each binary (SBOM), definitions of images, and the checksums of all.
//
// The same commit gives the same bytes: all times are that of the commit, and nothing about the machine is
// recorded. The command needs the go command, git, and network access to the module proxy only.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
)

func main() { os.Exit(command()) }

// command parses the command line, makes the release, and returns the exit code.
func command() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := release{goCommand: "go", log: os.Stdout}
	var platforms string
	flag.StringVar(&r.repo, "repo", ".", "the repository")
	flag.StringVar(&r.out, "out", "dist", "the directory that is written; what is in it is removed")
	flag.StringVar(&platforms, "platforms", strings.Join(supported, " "), "the platforms, separated by spaces")
	flag.StringVar(&r.goCommand, "go", r.goCommand, "the go command")
	flag.StringVar(&r.tags, "tags", "grpcnotrace", "build tags")
	flag.StringVar(&r.ldflags, "ldflags", "-s -w", "flags of the linker")
	flag.BoolVar(&r.dirty, "dirty", false, "accept files that differ from the commit; the version says so")
	flag.Parse()
	r.platforms = strings.Fields(platforms)
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "release: unknown argument %q\n", flag.Arg(0))
		return 2
	}
	if err := r.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		return 1
	}
	return 0
}
