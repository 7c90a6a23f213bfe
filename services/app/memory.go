package app

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Collections cost processor time in proportion to what lives, and save memory
// in proportion to what is thrown away between them. A small installation gains
// a tenth of its throughput from rare ones; with 100 000 agents the same rule
// made 5 GB of 1. So little is thrown away between two of them while there is
// little to do, and what gcSpell takes while there is much: with 125 000 items
// that live, mutations at full speed then cost a sixth less.
const (
	gcMostPercent  = 400
	gcLeastPercent = 50
	gcHeadroom     = 256 << 20 // bytes that may be thrown away between two collections
	gcMostHeadroom = 1 << 30   // the same, of a busy process
	gcSpell        = 4 * time.Second
	gcLook         = time.Second
	// calm is when a process gives back what its busy time left behind: it made
	// less than calmRate bytes a second for calmLooks looks.
	calmRate  = 32 << 20
	calmLooks = 5
)

// TendMemory sets how often memory is collected to what lives in it and what is
// going on, until ctx ends. It leaves the settings of an operator who gave
// GOGC alone.
func TendMemory(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	var t tending
	look := time.NewTicker(gcLook)
	defer look.Stop()
	for {
		metrics.Read(sample)
		percent, giveBack := t.look(sample[0].Value.Uint64(), sample[1].Value.Uint64())
		if percent != 0 {
			debug.SetGCPercent(percent)
		}
		if giveBack {
			debug.FreeOSMemory()
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// tending is what one look remembers for the next.
type tending struct {
	made uint64 // bytes since the process began
	rate uint64 // bytes a second; it falls by half a look, so that a pause is none
	calm int    // looks in a row
	set  int    // the percentage in force
}

// look gives the percentage to set, 0 to leave it, and whether memory should be
// given back.
func (t *tending) look(live, made uint64) (percent int, giveBack bool) {
	t.rate = max(t.rate/2, uint64(float64(made-t.made)/gcLook.Seconds()))
	t.made = made
	t.calm++
	if t.rate > calmRate {
		t.calm = 0
	}
	p := gcPercentFor(live, t.rate)
	// Setting it stops the world for a moment, so not for every byte.
	if p >= t.set*9/10 && p <= t.set*11/10 {
		p = 0
	} else {
		t.set = p
	}
	return p, t.calm == calmLooks
}

func gcPercentFor(live, rate uint64) int {
	headroom := min(max(uint64(float64(rate)*gcSpell.Seconds()), gcHeadroom), gcMostHeadroom)
	return int(min(max(headroom*100/max(live, 1), gcLeastPercent), gcMostPercent))
}
