package framelog

import (
	"strings"
	"unicode"
)

// TypeOfMessage returns the event type of a payload message: it converts WorkItemCreated to work_item_created, and
// keeps runs of capitals together: HTTPDone becomes http_done.
func TypeOfMessage(s string) string {
	var b strings.Builder
	rs := []rune(s)
	for i, c := range rs {
		if unicode.IsUpper(c) {
			beginsRun := i > 0 && !unicode.IsUpper(rs[i-1]) && rs[i-1] != '_'
			endsRun := i > 0 && unicode.IsUpper(rs[i-1]) && i+1 < len(rs) && unicode.IsLower(rs[i+1])
			if beginsRun || endsRun {
				b.WriteByte('_')
			}
			c = unicode.ToLower(c)
		}
		b.WriteRune(c)
	}
	return b.String()
}
