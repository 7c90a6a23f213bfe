// Package varz verifies the settings of NATS servers on which the durability of journals depends. It asks the
// monitoring port of each server, since a server does not show these settings to ordinary connections.
package varz

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// term bounds the request to one server.
const term = 3 * time.Second

// Server has the fields of a server's /varz that are verified.
type Server struct {
	Name       string `json:"server_name"`
	MaxPayload int64  `json:"max_payload"`
	JetStream  struct {
		Config *struct {
			SyncInterval time.Duration `json:"sync_interval"`
			SyncAlways   bool          `json:"sync_always"`
		} `json:"config"`
	} `json:"jetstream"`
}

// CheckURLs returns an error if urls is not a list of http addresses, separated by commas.
func CheckURLs(urls string) error {
	for address := range split(urls) {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("nats-monitor-url: %q is no address such as http://nats-1:8222", address)
		}
	}
	return nil
}

func split(urls string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for address := range strings.SplitSeq(urls, ",") {
			if address = strings.TrimSpace(address); address != "" && !yield(strings.TrimSuffix(address, "/")) {
				return
			}
		}
	}
}

// Verify asks the servers at urls, which are separated by commas. unknown has, for each server that cannot be
// asked, a text that says why. wrong is nil, or an error that names each missing setting and what to write into the
// server's configuration. Each server must allow messages of minPayload bytes.
func Verify(ctx context.Context, urls string, minPayload int64) (unknown []string, wrong error) {
	var errs []error
	for address := range split(urls) {
		s, err := ask(ctx, address)
		if err != nil {
			unknown = append(unknown, fmt.Sprintf("the settings of the NATS server at %s are not known: %v", address,
				err))
			continue
		}
		errs = append(errs, s.check(address, minPayload))
	}
	return unknown, errors.Join(errs...)
}

// check returns an error that names the settings that the server lacks.
func (s Server) check(address string, minPayload int64) error {
	name := fmt.Sprintf("the NATS server %s (%s)", s.Name, address)
	var errs []error
	switch c := s.JetStream.Config; {
	case c == nil:
		errs = append(errs, fmt.Errorf("%s has no JetStream: write jetstream { store_dir: …, sync_interval: always } "+
			"into its configuration", name))
	case !c.SyncAlways:
		errs = append(errs, fmt.Errorf("%s syncs its files every %s, and mutations that were answered would be lost "+
			"with the machine: set sync_interval: always in the block jetstream of its configuration", name,
			c.SyncInterval))
	}
	if s.MaxPayload < minPayload {
		errs = append(errs, fmt.Errorf("%s allows messages of %d bytes, and a journal needs %d: set max_payload: 8MB "+
			"in its configuration", name, s.MaxPayload, minPayload))
	}
	return errors.Join(errs...)
}

// ask reads what the server at a monitoring port says of itself.
func ask(ctx context.Context, address string) (Server, error) {
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/varz", nil)
	if err != nil {
		return Server{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Server{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return Server{}, fmt.Errorf("it answers with status %d", resp.StatusCode)
	}
	var s Server
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 4<<20)).Decode(&s); err != nil {
		return Server{}, fmt.Errorf("its answer is not that of a monitoring port: %w", err)
	}
	return s, nil
}
