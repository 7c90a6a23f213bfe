package access

import (
	"strconv"

	"quartet/pkg/fault"
	"quartet/pkg/page"
)

// PageBefore reads the page token of a list that counts down and returns the number
// before which the page begins, or -1 for the first page.
func PageBefore(list, token string) (int, error) {
	at, err := page.Position(list, token, 1)
	if err != nil || at == nil {
		return -1, err
	}
	n, err := strconv.Atoi(at[0])
	if err != nil || n < 0 {
		return 0, fault.CursorInvalid.Newf("page_token %q was not made by this list", token)
	}
	return n, nil
}
