// Package auditchain computes the hashes that chain the entries of the audit log.
//
// Owns: the form in which an entry is hashed. With it anybody who has the entries can check that none
// was changed, removed or inserted.
package auditchain

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "quartet/pkg/pb/quartet/audit/v1"
)

// Hash returns the hash of an entry, which depends on all its fields except hash: SHA-256, in hex, of
// the fields in the order of their numbers, each as its length in bytes in decimal, a colon and
// the field, with nothing between fields. A number is decimal, a kind is the name of its constant such as
// AUDIT_KIND_ATTEMPT, and a time is RFC 3339 in UTC with six digits of fraction or, if it is not set, empty. target
// is one field: its entries, sorted by name, each as name and value in the same form of length, colon and text.
func Hash(e *auditv1.AuditEntry) string {
	var b strings.Builder
	field := func(s string) { fmt.Fprintf(&b, "%d:%s", len(s), s) }
	number := func(n int64) { field(strconv.FormatInt(n, 10)) }
	moment := func(t *timestamppb.Timestamp) {
		if t == nil {
			field("")
			return
		}
		field(t.AsTime().UTC().Format("2006-01-02T15:04:05.000000Z"))
	}
	number(e.GetNumber())
	moment(e.GetAt())
	field(e.GetKind().String())
	for _, s := range []string{
		e.GetMethod(), e.GetNamespace(), e.GetPrincipal(), e.GetRole(), e.GetKeyId(),
		e.GetSource(), e.GetTargetNamespace(),
	} {
		field(s)
	}
	var target strings.Builder
	for _, name := range slices.Sorted(maps.Keys(e.GetTarget())) {
		value := e.GetTarget()[name]
		fmt.Fprintf(&target, "%d:%s%d:%s", len(name), name, len(value), value)
	}
	field(target.String())
	field(e.GetRequestId())
	number(e.GetAttempt())
	field(e.GetCode())
	field(e.GetReason())
	number(e.GetCount())
	moment(e.GetMinute())
	field(e.GetPreviousHash())
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:])
}

// Check returns an error unless entry e directly follows entry before, which is nil if e is the first:
// e must have the next number, its previous hash must be the hash of before, and its own hash must be
// that of its fields.
func Check(before, e *auditv1.AuditEntry) error {
	switch {
	case e.GetNumber() != before.GetNumber()+1:
		return fmt.Errorf("entry %d follows entry %d: entries are missing between them", e.GetNumber(),
			before.GetNumber())
	case e.GetPreviousHash() != before.GetHash():
		return fmt.Errorf("entry %d does not follow entry %d: its previous_hash is not that entry's hash",
			e.GetNumber(), before.GetNumber())
	case e.GetHash() != Hash(e):
		return fmt.Errorf("entry %d was changed: its hash is not that of its fields", e.GetNumber())
	}
	return nil
}
