// Package installation says whether every service of an installation is served: it asks all processes, not only the one
// that is asked.
package installation

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/journal/framelog"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// term bounds the question to one process; all are asked at once.
const term = 3 * time.Second

// Config is what an examination needs to know.
type Config struct {
	// Services are the services that an installation must have.
	Services []string
	// Partitions returns how many partitions a plane has, 0 for a service without a journal.
	Partitions func(service string) int
	// List returns the processes that reported themselves lately.
	List func(ctx context.Context) ([]*identityv1.Process, error)
	// Ask asks a process whether it can serve. It returns an error if it does not answer.
	Ask func(ctx context.Context, p *identityv1.Process) (ready bool, err error)
	// Stored returns the streams that are Quartet's, and what of them the journals take.
	Stored func(ctx context.Context) ([]*identityv1.StreamUsage, []*identityv1.JournalUsage, error)
	// Publishers returns how far EVENTS is behind the journals; nil: events are not copied.
	Publishers func(ctx context.Context) ([]*identityv1.PublisherLag, error)
	// Archive returns why the bucket with the archives cannot be used, or nil if it can. The function is nil if the
	// archives are in no bucket.
	Archive func() error
	// ManySegments is how many segments of a partition there may be before it is a problem that they are not archived.
	ManySegments int
	// Store returns how much of the store is in use and how much it can hold, 0 if that is not known.
	Store func() (used, limit int64)
	// FullIn returns how long it will take until the store is full, 0 if that is not known.
	FullIn func() time.Duration
}

// Examine asks all processes. An error means that nothing is known about them.
func (c Config) Examine(ctx context.Context) (*identityv1.ListProcessesResponse, error) {
	all, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *identityv1.Process) int {
		return cmp.Or(cmp.Compare(a.GetHost(), b.GetHost()), cmp.Compare(a.GetProcessId(), b.GetProcessId()))
	})
	c.ask(ctx, all)
	resp := &identityv1.ListProcessesResponse{Processes: all}
	for _, name := range c.Services {
		plane, problem := c.plane(name, all)
		resp.Planes = append(resp.Planes, plane)
		resp.Problems = append(resp.Problems, problem...)
	}
	for _, p := range all {
		if p.GetAnswer() == identityv1.ProcessAnswer_PROCESS_ANSWER_NONE {
			resp.Problems = append(resp.Problems, &identityv1.InstallationProblem{
				Text: fmt.Sprintf("the process %s does not answer", describe(p)),
				Remedy: "start it again or resume it, and see its log. If it was removed on purpose, it is forgotten " +
					"a minute after its last report",
			})
		}
	}
	resp.Problems = append(resp.Problems, reported(all)...)
	resp.StoreUsedBytes, resp.StoreLimitBytes = c.Store()
	if in := c.FullIn(); in > 0 {
		resp.StoreFullIn = durationpb.New(in)
	}
	if resp.Streams, resp.Journals, err = c.Stored(ctx); err != nil {
		resp.Problems = append(resp.Problems, &identityv1.InstallationProblem{
			Text:   fmt.Sprintf("the NATS servers do not tell what their streams hold: %v", err),
			Remedy: "see whether a majority of them runs", Down: true,
		})
		return resp, nil // they do not tell either how far EVENTS is
	}
	resp.Problems = append(resp.Problems, c.notArchived(resp.GetJournals())...)
	if c.Publishers != nil {
		if resp.Publishers, err = c.Publishers(ctx); err != nil {
			first, _, _ := strings.Cut(err.Error(), "\n")
			resp.Problems = append(resp.Problems, &identityv1.InstallationProblem{
				Text:   "the NATS servers do not tell how far EVENTS is behind the journals: " + first,
				Remedy: "see whether the stream EVENTS exists and has a leader; a start of the processes creates it",
			})
		}
	}
	return resp, nil
}

// ask sets the answers of the processes.
func (c Config) ask(ctx context.Context, all []*identityv1.Process) {
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	var asked sync.WaitGroup
	for _, p := range all {
		asked.Go(func() {
			switch ready, err := c.Ask(ctx, p); {
			case err != nil:
				p.Answer = identityv1.ProcessAnswer_PROCESS_ANSWER_NONE
			case ready:
				p.Answer = identityv1.ProcessAnswer_PROCESS_ANSWER_READY
			default:
				p.Answer = identityv1.ProcessAnswer_PROCESS_ANSWER_NOT_READY
			}
		})
	}
	asked.Wait()
}

// plane returns who serves a service, and what is wrong with that.
func (c Config) plane(name string, all []*identityv1.Process) (*identityv1.PlaneHealth,
	[]*identityv1.InstallationProblem,
) {
	h := &identityv1.PlaneHealth{Name: name, Partitions: int32(c.Partitions(name))}
	var silent, waiting []string
	for _, p := range all {
		if !slices.Contains(p.GetServices(), name) {
			continue
		}
		switch p.GetAnswer() {
		case identityv1.ProcessAnswer_PROCESS_ANSWER_READY:
			h.Up = true
			h.ProcessIds = append(h.ProcessIds, p.GetProcessId())
		case identityv1.ProcessAnswer_PROCESS_ANSWER_NOT_READY:
			h.ProcessIds = append(h.ProcessIds, p.GetProcessId())
			why := strings.Join(p.GetNotReady(), "; ")
			waiting = append(waiting, describe(p)+": "+cmp.Or(why, "its log says why"))
		default:
			silent = append(silent, describe(p))
		}
	}
	problem := &identityv1.InstallationProblem{Plane: name, Down: true}
	start := fmt.Sprintf("start one: `quartet serve %s …` with the nats-url of the others", name)
	switch {
	case h.GetUp():
		return h, nil
	case len(waiting) > 0:
		problem.Text = fmt.Sprintf("%s is not ready: %s", name, strings.Join(waiting, "; "))
		problem.Remedy = "wait until the process has loaded its journals and NATS answers; if it does not become " +
			"ready, see its log"
	case len(silent) > 0:
		problem.Text = fmt.Sprintf("%s is down: no process that serves it answers (%s)", name,
			strings.Join(silent, "; "))
		problem.Remedy = "start it again or resume it, or " + start
	default:
		problem.Text = name + " is down: no process serves it"
		problem.Remedy = start
	}
	return h, []*identityv1.InstallationProblem{problem}
}

const removalRemedy = "see that every plane is served, that the archive and the snapshots can be read and written, " +
	"and the log of the process that holds the partition; it is tried again by itself"

// reported returns the problems that processes know of: each text once.
func reported(all []*identityv1.Process) []*identityv1.InstallationProblem {
	var out []*identityv1.InstallationProblem
	seen := map[string]bool{}
	add := func(text, remedy string) {
		if text != "" && !seen[text] {
			seen[text] = true
			out = append(out, &identityv1.InstallationProblem{Text: text, Remedy: remedy})
		}
	}
	for _, p := range all {
		for _, text := range p.GetDamage() {
			add(text, framelog.DamageRemedy(text))
		}
	}
	for _, p := range all {
		text, remedy, _ := strings.Cut(p.GetWarning(), ". ")
		add(text, cmp.Or(remedy, "see the log of the process"))
	}
	for _, p := range all {
		for _, text := range p.GetRemovalFailures() {
			add(text, removalRemedy)
		}
	}
	return out
}

// describe names a process for people.
func describe(p *identityv1.Process) string {
	return fmt.Sprintf("%s on %s at %s", p.GetProcessId(), cmp.Or(p.GetHost(), "a machine without a name"),
		p.GetAddress())
}

// Down returns the problems of an examination because of which a service is not served, each in a text that names no
// process or machine, since everybody may read it.
func Down(resp *identityv1.ListProcessesResponse) []string {
	var out []string
	for _, p := range resp.GetProblems() {
		if p.GetDown() {
			what, _, _ := strings.Cut(p.GetText(), ":")
			out = append(out, what+"; `quartet status` says why and what to do")
		}
	}
	return out
}

// watchTerm is for how long the result of a Watch is used again.
const watchTerm = time.Second

// Watch examines an installation for callers who are not known: however many ask, the processes are asked once a second
// at most.
type Watch struct {
	config func() Config
	mu     sync.Mutex
	at     time.Time
	down   []string
}

// NewWatch returns a Watch. config is called for each examination.
func NewWatch(config func() Config) *Watch { return &Watch{config: config} }

// Down returns the texts of the function Down for an examination that is less than watchTerm old. If the installation
// could not be examined, it returns one text that says so.
func (w *Watch) Down(ctx context.Context) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.at.IsZero() && time.Since(w.at) < watchTerm {
		return w.down
	}
	resp, err := w.config().Examine(ctx)
	switch {
	case ctx.Err() != nil:
		return []string{"the processes of the installation were not asked in time"}
	case err != nil:
		w.down = []string{"the processes of the installation are not known"}
	default:
		w.down = Down(resp)
	}
	w.at = time.Now()
	return w.down
}
