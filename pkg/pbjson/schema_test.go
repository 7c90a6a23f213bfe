package pbjson

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	_ "google.golang.org/protobuf/types/known/durationpb"
	_ "google.golang.org/protobuf/types/known/structpb"
	_ "google.golang.org/protobuf/types/known/timestamppb"
)

// everything is a message with a field of every kind, as a descriptor.
const everything = `
name: "everything.proto" package: "test" syntax: "proto3"
dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/duration.proto" dependency: "google/protobuf/struct.proto"
enum_type { name: "PlanStatus"
  value { name: "PLAN_STATUS_UNSPECIFIED" number: 0 }
  value { name: "PLAN_STATUS_DRAFT" number: 1 }
  value { name: "PLAN_STATUS_NEEDS_INPUT" number: 2 }
  value { name: "ODD" number: 3 } }
message_type { name: "Everything"
  field { name: "work_item_id" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "plan_status" number: 2 type: TYPE_ENUM type_name: ".test.PlanStatus" label: LABEL_OPTIONAL }
  field { name: "a_int32" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "a_sint64" number: 4 type: TYPE_SINT64 label: LABEL_OPTIONAL }
  field { name: "a_uint32" number: 5 type: TYPE_UINT32 label: LABEL_OPTIONAL }
  field { name: "a_fixed64" number: 6 type: TYPE_FIXED64 label: LABEL_OPTIONAL }
  field { name: "a_float" number: 7 type: TYPE_FLOAT label: LABEL_OPTIONAL }
  field { name: "a_double" number: 8 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
  field { name: "a_bool" number: 9 type: TYPE_BOOL label: LABEL_OPTIONAL }
  field { name: "a_bytes" number: 10 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "created_at" number: 11 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "lease" number: 12 type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" label: LABEL_OPTIONAL }
  field { name: "args" number: 13 type: TYPE_MESSAGE type_name: ".google.protobuf.Struct" label: LABEL_OPTIONAL }
  field { name: "any" number: 14 type: TYPE_MESSAGE type_name: ".google.protobuf.Value" label: LABEL_OPTIONAL }
  field { name: "items" number: 15 type: TYPE_MESSAGE type_name: ".google.protobuf.ListValue" label: LABEL_OPTIONAL }
  field { name: "self" number: 16 type: TYPE_MESSAGE type_name: ".test.Everything" label: LABEL_OPTIONAL }
  field { name: "selves" number: 17 type: TYPE_MESSAGE type_name: ".test.Everything" label: LABEL_REPEATED }
  field { name: "texts" number: 18 type: TYPE_STRING label: LABEL_REPEATED }
  field { name: "numbers" number: 19 type: TYPE_INT64 label: LABEL_REPEATED }
  field { name: "statuses" number: 20 type: TYPE_ENUM type_name: ".test.PlanStatus" label: LABEL_REPEATED }
  field { name: "labels" number: 21 type: TYPE_MESSAGE type_name: ".test.Everything.LabelsEntry" label: LABEL_REPEATED }
  field { name: "by_number" number: 22 type: TYPE_MESSAGE type_name: ".test.Everything.ByNumberEntry" label: LABEL_REPEATED }
  field { name: "by_flag" number: 23 type: TYPE_MESSAGE type_name: ".test.Everything.ByFlagEntry" label: LABEL_REPEATED }
  field { name: "reason" number: 24 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 1 }
  field { name: "limit" number: 25 type: TYPE_INT32 label: LABEL_OPTIONAL proto3_optional: true oneof_index: 2 }
  field { name: "left" number: 26 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "right" number: 27 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "anys" number: 28 type: TYPE_MESSAGE type_name: ".google.protobuf.Value" label: LABEL_REPEATED }
  oneof_decl { name: "side" } oneof_decl { name: "_reason" } oneof_decl { name: "_limit" }
  nested_type { name: "LabelsEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }
  nested_type { name: "ByNumberEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_SINT32 label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".test.Everything" label: LABEL_OPTIONAL } }
  nested_type { name: "ByFlagEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_ENUM type_name: ".test.PlanStatus" label: LABEL_OPTIONAL } }
}`

var everythingType = func() protoreflect.MessageType {
	file := &descriptorpb.FileDescriptorProto{}
	if err := prototext.Unmarshal([]byte(everything), file); err != nil {
		panic(err)
	}
	fd, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		panic(err)
	}
	return dynamicpb.NewMessageType(fd.Messages().ByName("Everything"))
}()

func newEverything() proto.Message { return everythingType.New().Interface() }

// text returns m as JSON.
func text(t require.TestingT, m proto.Message) string {
	b, err := Append(nil, m)
	require.NoError(t, err)
	return string(b)
}

// same wants that JSON read into Everything is written as want.
func same(t *testing.T, in, want string) {
	m := newEverything()
	require.NoError(t, Unmarshal([]byte(in), m), in)
	require.Equal(t, want, text(t, m))
}
