// Command protogen compiles the protos of a directory and runs code generators on them, as
// protoc does. It needs only a parser library and is built in seconds. With a lint and build tool for protos, a
// first `make generate` would have to build that.
//
// Usage, from the root of the repository:
//
//	protogen -tools bin/tools -out DIR [-image FILE] proto
//
// The table in plugins.go has the generators, their parameters and the directories of their output.
// -image additionally writes the compiled files with their comments as one
// google.protobuf.FileDescriptorSet.
package main

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	tools := flag.String("tools", "bin/tools", "where the generators are")
	out := flag.String("out", "", "where to write")
	image := flag.String("image", "", "also write the compiled files here")
	flag.Parse()
	if *out == "" || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(context.Background(), *tools, *out, *image, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, tools, out, image, root string) error {
	names, err := sources(root)
	if err != nil {
		return err
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, names...)
	if err != nil {
		return err
	}
	var set descriptorpb.FileDescriptorSet
	done := map[string]bool{}
	for _, f := range files {
		add(&set, done, f)
	}
	if image != "" {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(&set)
		if err != nil {
			return err
		}
		if err := write(image, raw); err != nil {
			return err
		}
	}
	for _, p := range plugins {
		if err := p.run(ctx, tools, out, names, &set); err != nil {
			return err
		}
	}
	return nil
}

// sources returns the proto files below root, sorted, by their paths relative to root.
func sources(root string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".proto") {
			name, relErr := filepath.Rel(root, path)
			if relErr != nil {
				return relErr
			}
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	slices.Sort(names)
	return names, err
}

// add appends f to set after all files that it imports, which is the order that generators expect. done has the
// paths of the files in set.
func add(set *descriptorpb.FileDescriptorSet, done map[string]bool, f protoreflect.FileDescriptor) {
	if done[f.Path()] {
		return
	}
	done[f.Path()] = true
	imports := f.Imports()
	for i := range imports.Len() {
		add(set, done, imports.Get(i).FileDescriptor)
	}
	fd := protodesc.ToFileDescriptorProto(f)
	if fd.SourceCodeInfo == nil { // for a standard import, whose comments are not needed
		fd.SourceCodeInfo = &descriptorpb.SourceCodeInfo{}
	}
	set.File = append(set.File, fd)
}

func write(path string, raw []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o644)
}
