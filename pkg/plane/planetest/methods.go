package planetest

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Methods calls visit with each RPC of Quartet whose messages the test links, and its name as /service/Method.
// mutates says that its request has a request_id.
func Methods(visit func(name string, md protoreflect.MethodDescriptor, mutates bool)) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				md := methods.Get(j)
				if name := string(md.Parent().FullName()); strings.HasPrefix(name, "quartet.") {
					visit("/"+name+"/"+string(md.Name()), md, md.Input().Fields().ByName("request_id") != nil)
				}
			}
		}
		return true
	})
}
