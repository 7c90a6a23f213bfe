package backup

import (
	"io"
	"io/fs"
	"os"
	"sync"
)

// progress is how much of a backup was copied, by the sizes that its parts had at the moment of the cut. It is an
// estimate: segments are archived and files change while they are copied.
type progress struct {
	all  float64            // bytes
	each map[string]float64 // by stream, the average bytes of a message

	mu   sync.Mutex // the archive is compressed and sent by goroutines of its own
	done float64    // bytes
}

// newProgress returns the progress of a backup of the streams names and the files below home, which need not exist.
func newProgress(names []string, moment cut, archives map[string][]archived, home string) *progress {
	p := &progress{each: map[string]float64{}}
	for _, name := range names {
		size, messages := float64(moment.ends[name].bytes), float64(moment.ends[name].messages)
		if messages == 0 {
			for _, part := range archives[name] {
				size += float64(part.GetBytes())
				messages += float64(part.GetFrames())
			}
		}
		if messages > 0 {
			p.each[name] = size / messages
			p.all += size
		}
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return p
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // copying it says what is wrong
		}
		if info, err := d.Info(); err == nil {
			p.all += float64(info.Size())
		}
		return nil
	})
	return p
}

// message counts a message of a stream as copied.
func (p *progress) message(stream string) { p.add(p.each[stream]) }

// file returns a reader of r that counts the bytes that are read as copied.
func (p *progress) file(r io.Reader) io.Reader { return fileReader{r, p} }

type fileReader struct {
	io.Reader
	p *progress
}

// Read implements io.Reader. It counts the bytes as copied.
func (f fileReader) Read(b []byte) (int, error) {
	n, err := f.Reader.Read(b)
	f.p.add(float64(n))
	return n, err
}

func (p *progress) add(n float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
}

// part returns how much was copied, from 0 to 1.
func (p *progress) part() float64 {
	if p.all == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(p.done/p.all, 1)
}
