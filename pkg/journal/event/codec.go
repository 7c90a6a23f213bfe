package event

import (
	"strconv"

	"quartet/pkg/jsontext"
	"quartet/pkg/pbjson"
)

// AppendLine appends ev as one line of a frame, with the final newline. The order of the fields is fixed: wal_seq,
// event_type and agent_id come first, because framelog.TypeOfLine relies on it to filter without reading the rest, and
// payload comes last. It is hand-written because encoding/json takes 1.4 µs for the same.
func AppendLine(dst []byte, ev *Event) ([]byte, error) {
	dst = append(dst, `{"wal_seq":`...)
	dst = strconv.AppendUint(dst, ev.WalSeq, 10)
	dst = append(dst, `,"event_type":`...)
	dst = jsontext.AppendString(dst, ev.Type)
	dst = append(dst, `,"agent_id":`...)
	dst = jsontext.AppendString(dst, ev.AgentID)
	dst = append(dst, `,"event_id":`...)
	dst = jsontext.AppendString(dst, ev.ID)
	dst = append(dst, `,"namespace":`...)
	dst = jsontext.AppendString(dst, ev.Namespace)
	dst = append(dst, `,"plane":`...)
	dst = jsontext.AppendString(dst, ev.Plane)
	dst = appendField(dst, `,"session_id":`, ev.SessionID)
	dst = appendField(dst, `,"task_id":`, ev.TaskID)
	dst = appendField(dst, `,"step_id":`, ev.StepID)
	dst = appendField(dst, `,"work_item_id":`, ev.WorkItemID)
	dst = appendField(dst, `,"actor_namespace":`, ev.ActorNamespace)
	dst = appendField(dst, `,"actor_agent_id":`, ev.ActorAgentID)
	dst = appendField(dst, `,"actor_run_id":`, ev.ActorRunID)
	dst = appendField(dst, `,"actor_key_id":`, ev.ActorKeyID)
	dst = appendField(dst, `,"principal":`, ev.Principal)
	dst = appendField(dst, `,"role":`, ev.Role)
	dst = appendField(dst, `,"method":`, ev.Method)
	dst = appendField(dst, `,"request_id":`, ev.RequestID)
	dst = appendField(dst, `,"request_hash":`, ev.RequestHash)
	dst = appendField(dst, `,"traceparent":`, ev.Traceparent)
	dst = appendField(dst, `,"readiness_from":`, ev.ReadinessFrom)
	dst = appendField(dst, `,"readiness_to":`, ev.ReadinessTo)
	dst = appendField(dst, `,"readiness_reason":`, ev.ReadinessReason)
	dst = append(dst, `,"created_at":`...)
	dst = jsontext.AppendTime(dst, ev.CreatedAt)
	dst = append(dst, `,"payload":`...)
	dst, err := pbjson.Append(dst, ev.Payload)
	if err != nil {
		return nil, err
	}
	return append(dst, '}', '\n'), nil
}

func appendField(dst []byte, key, value string) []byte {
	if value == "" {
		return dst
	}
	return jsontext.AppendString(append(dst, key...), value)
}
