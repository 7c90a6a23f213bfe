package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// plugin is a generator: a program that reads a CodeGeneratorRequest and writes a
// CodeGeneratorResponse.
type plugin struct {
	program   string
	dir       string // below the output directory
	parameter string
	// together says that the generator gets one request for all files. Otherwise it gets one for each
	// directory, which generators of Go code expect.
	together bool
}

var plugins = []plugin{
	{program: "protoc-gen-go", dir: "pkg/pb", parameter: "paths=source_relative"},
	{program: "protoc-gen-go-grpc", dir: "pkg/pb", parameter: "paths=source_relative"},
	{
		program: "protoc-gen-grpc-gateway", dir: "pkg/pb",
		parameter: "paths=source_relative,grpc_api_configuration=proto/gateway.yaml", together: true,
	},
	{
		program: "protoc-gen-openapiv2", dir: "deploy/openapi",
		parameter: "allow_merge=true,merge_file_name=quartet,grpc_api_configuration=proto/gateway.yaml",
		together:  true,
	},
}

func (p plugin) run(ctx context.Context, tools, out string, names []string, set *descriptorpb.FileDescriptorSet) error {
	for _, batch := range p.batches(names) {
		if err := p.generate(ctx, tools, out, batch, set); err != nil {
			return fmt.Errorf("%s: %w", p.program, err)
		}
	}
	return nil
}

// batches returns the files of each request (see together). names must be sorted, so that the files of
// a directory are adjacent.
func (p plugin) batches(names []string) [][]string {
	if p.together {
		return [][]string{names}
	}
	var out [][]string
	for i, name := range names {
		if i == 0 || path.Dir(name) != path.Dir(names[i-1]) {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], name)
	}
	return out
}

func (p plugin) generate(ctx context.Context, tools, out string, names []string,
	set *descriptorpb.FileDescriptorSet,
) error {
	raw, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: names, Parameter: proto.String(p.parameter), ProtoFile: needed(names, set),
	})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(tools, p.program))
	cmd.Stdin, cmd.Stderr = bytes.NewReader(raw), os.Stderr
	answer, err := cmd.Output()
	if err != nil {
		return err
	}
	var resp pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(answer, &resp); err != nil {
		return err
	}
	if resp.Error != nil {
		return errors.New(resp.GetError())
	}
	for _, f := range resp.GetFile() {
		if f.GetName() == "" || f.InsertionPoint != nil || !filepath.IsLocal(f.GetName()) {
			return fmt.Errorf("cannot write a file named %q (insertion points are not supported)", f.GetName())
		}
		if err := write(filepath.Join(out, p.dir, filepath.FromSlash(f.GetName())), []byte(f.GetContent())); err !=
			nil {
			return err
		}
	}
	return nil
}

// needed returns the files with the given names and all files that they import, directly or indirectly, in the
// order of set.
func needed(names []string, set *descriptorpb.FileDescriptorSet) []*descriptorpb.FileDescriptorProto {
	want := map[string]bool{}
	for _, f := range slices.Backward(set.GetFile()) {
		if slices.Contains(names, f.GetName()) || want[f.GetName()] {
			want[f.GetName()] = true
			for _, dep := range f.GetDependency() {
				want[dep] = true
			}
		}
	}
	var out []*descriptorpb.FileDescriptorProto
	for _, f := range set.GetFile() {
		if want[f.GetName()] {
			out = append(out, f)
		}
	}
	return out
}
