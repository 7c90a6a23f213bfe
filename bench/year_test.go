package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestYearPlot: the plot is XML, has a value for each month in each line, and names that do not stand on one another.
func TestYearPlot(t *testing.T) {
	var all []month
	for n := range 4 {
		all = append(all, month{
			n: n, total: int64(n) * 30e6, archive: int64(n) * 20e6, events: 1e6, snapshots: 1e6,
			rss: 150e6, heap: 40e6, ready: time.Second,
		})
	}
	plot := yearPlot(400, all)
	d, lines := xml.NewDecoder(strings.NewReader(plot)), 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, is := token.(xml.StartElement); is && e.Name.Local == "polyline" {
			lines++
			for _, a := range e.Attr {
				if a.Name.Local == "points" {
					require.Len(t, strings.Fields(a.Value), len(all))
				}
			}
		}
	}
	require.Equal(t, 9, lines)
	require.Contains(t, yearTable(400, all), "| 3 | 0 | 0 MB | 90.0 MB | 0.0 | 1.0 | 60.0 | 1.0 |")
	require.Contains(t, yearTable(400, all), "--factor 400 ")
}

// TestYearSettings: what is divided is never less than the smallest setting.
func TestYearSettings(t *testing.T) {
	require.Equal(t, []string{"--segment-mib=4", "--snapshot-mib=1", "--events-mib=8"}, yearSettings(16)[:3])
	require.Equal(t, []string{"--segment-mib=1", "--snapshot-mib=1", "--events-mib=1"}, yearSettings(400)[:3])
	require.Len(t, prose(rand.New(rand.NewPCG(1, 1)), 777), 777)
}

// TestBlocksOf: what is counted as a part of its own is left out of the rest.
func TestBlocksOf(t *testing.T) {
	dir := t.TempDir()
	part := filepath.Join(dir, "part")
	require.NoError(t, os.Mkdir(part, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(part, "file"), make([]byte, 1<<20), 0o600))
	require.GreaterOrEqual(t, blocksOf(part), int64(1<<20))
	require.Equal(t, blocksOf(dir)-blocksOf(part), blocksOf(dir, part))
}
