// Package pbjson writes and reads protobuf messages in the JSON form of journal lines and
// tool calls (SPEC X13), which is not ProtoJSON:
//
//   - field names are snake_case; lowerCamelCase is accepted
//   - enum values are lower case without the prefix of their type:
//     PLAN_STATUS_NEEDS_INPUT is "needs_input"; the full name is accepted
//   - 64-bit integers are numbers
//   - timestamps are RFC 3339 in UTC with exactly six decimals, and truncated to
//     microseconds; Timestamp returns timestamps that are written without loss
//   - durations are "1.500s", bytes are base64, Struct, Value and ListValue are
//     plain JSON
//   - unset fields are omitted; optional fields keep their presence
//
// The output is compact and deterministic: fields are in the order of the .proto file, maps
// sorted by key. Reading is strict: unknown and repeated fields, wrong types and values out of
// range are refused with the path of the field. Well-known types other than the above (Any,
// FieldMask, wrappers) are written like other messages.
package pbjson
