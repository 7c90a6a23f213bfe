// Package scrape reads the metrics of a server over HTTP, and the memory of its process from the system.
package scrape

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"

	"quartet/tests/proc"
)

// Metric returns the sum of a server's samples whose names begin with prefix.
func Metric(ctx context.Context, addr, prefix string) (sum float64, err error) {
	err = Samples(ctx, addr, func(name string, value float64) {
		if strings.HasPrefix(name, prefix) {
			sum += value
		}
	})
	return sum, err
}

// Samples calls fn with each sample of the metrics of the server at addr. name includes the sample's labels, as in
// requests_total{code="200"}.
func Samples(ctx context.Context, addr string, fn func(name string, value float64)) error {
	return Lines(ctx, "http://"+addr+"/metrics", func(line string) error {
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			return nil
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err == nil {
			fn(line[:at], v)
		}
		return err
	})
}

// Lines calls fn with each line of the response to a GET of url, until fn returns an error.
func Lines(ctx context.Context, url string, fn func(line string) error) error {
	return Get(ctx, url, func(body io.Reader) error {
		scan := bufio.NewScanner(body)
		scan.Buffer(nil, 1<<20)
		for scan.Scan() {
			if err := fn(scan.Text()); err != nil {
				return err
			}
		}
		return scan.Err()
	})
}

// Get calls fn with the body of the response to a GET of url. It returns an error if the status is not 200.
func Get(ctx context.Context, url string, fn func(body io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := proc.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return fn(resp.Body)
}

// Resident returns the resident memory of a process in bytes; 0 on systems other than Linux.
func Resident(pid int) (int64, error) {
	if runtime.GOOS != "linux" {
		return 0, nil
	}
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	kib, _, ok := strings.Cut(strings.TrimSpace(rest), " ")
	if !ok {
		return 0, fmt.Errorf("process %d has ended", pid) // and is not yet waited for
	}
	n, err := strconv.ParseInt(kib, 10, 64)
	return n << 10, err
}
