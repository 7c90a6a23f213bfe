// Package pbjson writes and reads protobuf messages in the JSON form of
// journal lines and tool calls (SPEC X13), which is not ProtoJSON:
//
//   - field names are snake_case; reading takes lowerCamelCase as well
//   - enum values are lower case without the prefix of their type:
//     PLAN_STATUS_NEEDS_INPUT is "needs_input"; reading takes the full name too
//   - 64-bit integers are numbers
//   - timestamps are RFC 3339 in UTC with exactly six decimals; what is finer
//     than a microsecond is cut off, so make timestamps with Timestamp
//   - durations are "1.500s", bytes are base64, Struct, Value and ListValue are
//     plain JSON
//   - unset fields are omitted; optional fields keep their presence
//
// The output is compact and the same bytes for the same message, always:
// fields in the order of the .proto file, maps sorted by key. Reading is
// strict: unknown and repeated fields, wrong types and values out of range are
// refused with the path of the field. Well-known types other than the above
// (Any, FieldMask, wrappers) are written as the ordinary messages they are.
package pbjson
