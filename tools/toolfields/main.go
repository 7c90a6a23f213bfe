// Command toolfields writes the comments of the fields of requests in the proto files to a
// JSON file, by the full name of the field. The descriptions of tools use them, so that a model reads
// the same words as a programmer who reads the API.
//
// Usage: toolfields IMAGE OUT.json, where IMAGE is a file that protogen -image writes.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: toolfields IMAGE OUT.json")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "toolfields:", err)
		os.Exit(1)
	}
}

func write(image, out string) error {
	raw, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &set); err != nil {
		return fmt.Errorf("%s is no image: %w", image, err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return err
	}
	words := map[string]string{}
	files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		internal := strings.HasSuffix(f.Path(), "_event.proto") || strings.HasSuffix(f.Path(), "_page.proto") ||
			f.Package() == "quartet.snapshot.v1"
		if internal || !strings.HasPrefix(string(f.Package()), "quartet.") {
			return true
		}
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			if strings.HasSuffix(string(m.Name()), "Response") {
				continue
			}
			for j := range m.Fields().Len() {
				fd := m.Fields().Get(j)
				words[string(fd.FullName())] = line(f.SourceLocations().ByDescriptor(fd).LeadingComments)
			}
		}
		return true
	})
	text, err := json.MarshalIndent(words, "", " ") // sorted by key
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

func line(comment string) string { return strings.Join(strings.Fields(comment), " ") }
