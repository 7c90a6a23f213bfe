package journal

// maxMissed limits the number of skipped waits to 127.
const maxMissed = 7

// adaptiveWait skips exponentially more waits while they are in vain: 1, 3, 7 and so on up to 127. The zero
// value skips none. It is not safe for concurrent use.
type adaptiveWait struct {
	missed int // waits in vain in a row
	skip   int // number of waits to skip
}

// ShouldWait reports whether to wait this time.
func (w *adaptiveWait) ShouldWait() bool {
	if w.skip > 0 {
		w.skip--
		return false
	}
	return true
}

// Record is called after each wait. arrived says whether it was worth its delay.
func (w *adaptiveWait) Record(arrived bool) {
	if arrived {
		w.missed = 0
		return
	}
	w.missed = min(w.missed+1, maxMissed)
	w.skip = 1<<w.missed - 1
}
