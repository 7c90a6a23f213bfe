package wal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"

	"quartet/pkg/journal"
	"quartet/pkg/jsontext"
	"quartet/pkg/pbjson"
)

// hashSize is how many bytes of a SHA-256 a line has. They detect accidents and any
// edit that does not also rewrite all later lines.
const hashSize = 16

// Hash is the hash of a line, which covers all lines before it.
type Hash [hashSize]byte

// FirstHash returns the hash that the first line is chained to.
func FirstHash(session, wal string) Hash {
	sum := sha256.Sum256([]byte(session + "/" + wal))
	return Hash(sum[:hashSize])
}

// hashField is what a line has before its hash.
const hashField = `,"hash":"`

// AppendLine appends an event as the line with number seq, chained to the hash of the
// line before. It returns the extended slice and the hash of the line.
func AppendLine(dst []byte, before Hash, seq int64, ev *journal.Event) ([]byte, Hash, error) {
	start := len(dst)
	dst = append(dst, `{"wal_seq":`...)
	dst = appendInt(dst, seq)
	for _, f := range [...]struct{ name, value string }{
		{`,"session_id":`, ev.SessionID},
		{`,"event_id":`, ev.ID},
		{`,"event_type":`, ev.Type},
		{`,"actor_agent_id":`, ev.ActorAgentID},
		{`,"actor_run_id":`, ev.ActorRunID},
		{`,"principal":`, ev.Principal},
		{`,"role":`, ev.Role},
		{`,"actor_key_id":`, ev.ActorKeyID},
		{`,"task_id":`, ev.TaskID},
	} {
		dst = jsontext.AppendString(append(dst, f.name...), f.value)
	}
	if ev.StepID != "" {
		dst = jsontext.AppendString(append(dst, `,"step_id":`...), ev.StepID)
	}
	dst = append(dst, `,"payload":`...)
	dst, err := pbjson.Append(dst, ev.Payload)
	if err != nil {
		return nil, before, err
	}
	dst = jsontext.AppendTime(append(dst, `,"created_at":`...), ev.CreatedAt)
	hash := chainHash(before, dst[start:])
	dst = hex.AppendEncode(append(dst, hashField...), hash[:])
	return append(dst, '"', '}', '\n'), hash, nil
}

// chainHash returns the hash of a line, which is given without its hash field, after the
// line with the hash before.
func chainHash(before Hash, line []byte) Hash {
	h := sha256.New()
	h.Write(before[:])
	h.Write(line)
	var sum [sha256.Size]byte
	return Hash(h.Sum(sum[:0])[:hashSize])
}

// appendInt appends n, which must not be negative, in decimal.
func appendInt(dst []byte, n int64) []byte {
	var b [20]byte
	i := len(b)
	for {
		i--
		b[i] = byte('0' + n%10)
		if n /= 10; n == 0 {
			return append(dst, b[i:]...)
		}
	}
}

// splitHash splits a line, without its line feed, into the part that is hashed and the
// hash. ok is false if the line does not end with a hash.
func splitHash(line []byte) (body []byte, h Hash, ok bool) {
	i := bytes.LastIndex(line, []byte(hashField))
	if i < 0 || len(line) != i+len(hashField)+2*hashSize+2 || !bytes.HasSuffix(line, []byte(`"}`)) {
		return nil, h, false
	}
	if _, err := hex.Decode(h[:], line[i+len(hashField):len(line)-2]); err != nil {
		return nil, h, false
	}
	return line[:i], h, true
}
