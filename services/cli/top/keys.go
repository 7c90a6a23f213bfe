package top

import "io"

// key is what was pressed: a character, or one of the constants below.
type key rune

// Keys that are no characters of a text. They lie outside of Unicode.
const (
	keyUp key = 0x110000 + iota
	keyDown
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
	keyEnter
	keyEscape
	keyBackspace
	keyInterrupt
)

// sequences are the escape sequences of keys, without the escape.
var sequences = map[string]key{
	"[A": keyUp, "OA": keyUp, "[B": keyDown, "OB": keyDown, "[D": keyEscape, "OD": keyEscape, "[C": keyEnter,
	"OC":  keyEnter,
	"[5~": keyPageUp, "[6~": keyPageDown, "[H": keyHome, "OH": keyHome, "[1~": keyHome, "[F": keyEnd, "OF": keyEnd,
	"[4~": keyEnd,
}

// readKeys sends what is pressed, until in ends or fails, and closes the channel. A terminal delivers the sequence of
// one key in one piece, so an escape at the end of a piece is the key itself.
func readKeys(in io.Reader, out chan<- key, stop <-chan struct{}) {
	defer close(out)
	buf := make([]byte, 256)
	for {
		n, err := in.Read(buf)
		for _, k := range parseKeys(buf[:n]) {
			select {
			case out <- k:
			case <-stop:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// parseKeys returns the keys in a piece of input. It skips sequences that are not known and what is not ASCII.
func parseKeys(piece []byte) []key {
	var out []key
	for i := 0; i < len(piece); {
		if piece[i] != 0x1b {
			switch c := piece[i]; {
			case c == 3, c == 4: // ^C, ^D: in raw mode the terminal sends no signal
				out = append(out, keyInterrupt)
			case c == '\r', c == '\n':
				out = append(out, keyEnter)
			case c == 0x7f, c == 8:
				out = append(out, keyBackspace)
			case c >= ' ' && c < 0x7f:
				out = append(out, key(c))
			}
			i++
			continue
		}
		end := i + 1
		if end < len(piece) && (piece[end] == '[' || piece[end] == 'O') {
			for end++; end < len(piece) && (piece[end] < '@' || piece[end] > '~'); end++ {
			}
			end = min(end+1, len(piece))
		}
		if end == i+1 {
			out = append(out, keyEscape)
		} else if k, ok := sequences[string(piece[i+1:end])]; ok {
			out = append(out, k)
		}
		i = end
	}
	return out
}
