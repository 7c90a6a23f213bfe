package workerstream

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"

	"quartet/pkg/fault"
	"quartet/pkg/plane"
)

// Limits of a hello.
const (
	MaxCapacity = 10_000
	MaxPools    = 100
	MaxHeld     = 10_000 // assignments that a worker may claim to hold

	MaxLabels          = 64
	MaxLabelValueBytes = 128
)

// Key names a worker. Namespace is empty for a worker that serves all
// namespaces, so that no tenant can take the name of another's worker.
type Key = plane.Key

// Hello is what a worker says of itself when it connects.
type Hello struct {
	WorkerID string
	BootID   string // new for each process of the worker
	Capacity int    // how many assignments it executes at once
	Pools    []string
	Labels   map[string]string
	Held     []string // ids of the assignments that it still has
}

// HelloRules say what a plane requires of a hello. PoolsField and HeldField are
// the names of the fields that list pools and assignments, for errors; LabelLimit is the
// maximum number of labels.
type HelloRules struct {
	MinCapacity int
	NeedsPool   bool
	PoolsField  string
	HeldField   string
	LabelLimit  int
	// CheckLabels says that the names and values of labels are checked too.
	CheckLabels bool
}

// ReceiveHello receives the first message of a worker's stream. helloOf returns what that
// message says of the worker, or nil if it is not a hello. ReceiveHello returns an error if the
// message is not a hello, and if the hello breaks the rules.
func ReceiveHello[In, Out any](stream grpc.BidiStreamingServer[In, Out], rules HelloRules, helloOf func(*In) *Hello) (
	*In, *Hello, error,
) {
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	hello := helloOf(first)
	if hello == nil {
		return nil, nil, fault.InvalidArgument.New("the first message of a worker must be hello").
			WithField("hello", "is required")
	}
	return first, hello, hello.Check(rules)
}

// SecondHello returns the error for a hello that is not the first message of a stream.
func SecondHello() error {
	return fault.InvalidArgument.New("a worker says hello once, and then only reports").
		WithField("message", "must be a report")
}

// Check returns an error, with the name of the field, if the hello breaks the rules.
func (h Hello) Check(rules HelloRules) error {
	pools := "hello." + rules.PoolsField
	if err := fault.First(
		fault.Name("hello.worker_id", h.WorkerID), fault.Name("hello.boot_id", h.BootID),
		fault.Entries(pools, len(h.Pools), MaxPools), fault.Entries("hello."+rules.HeldField, len(h.Held), MaxHeld),
		fault.Entries("hello.labels", len(h.Labels), rules.LabelLimit),
	); err != nil {
		return err
	}
	if rules.NeedsPool && len(h.Pools) == 0 {
		return fault.InvalidArgument.Newf("%s is empty; a worker joins at least one pool", pools).
			WithField(pools, "must have an entry")
	}
	for i, pool := range h.Pools {
		if err := fault.Name(fmt.Sprintf("%s[%d]", pools, i), pool); err != nil {
			return err
		}
	}
	if h.Capacity < rules.MinCapacity || h.Capacity > MaxCapacity {
		must := fmt.Sprintf("must be %d to %d", rules.MinCapacity, MaxCapacity)
		return fault.LimitExceeded.Newf("hello.capacity is %d; it %s", h.Capacity, must).WithField("hello.capacity",
			must)
	}
	if rules.CheckLabels {
		return CheckLabels("hello.labels", h.Labels)
	}
	return nil
}

// CheckLabels returns an error if there are more than MaxLabels labels, or if one has a bad name or a value of more
// than MaxLabelValueBytes. It is for the labels of a worker, and for those that a command requires of its worker.
// field is the name of the labels in the error.
func CheckLabels(field string, labels map[string]string) error {
	if err := fault.Entries(field, len(labels), MaxLabels); err != nil {
		return err
	}
	// Sorted, so that the same request always gets the same refusal.
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if err := fault.First(
			fault.Name(field, name), fault.TextBytes(field+"."+name, labels[name], MaxLabelValueBytes, false),
		); err != nil {
			return err
		}
	}
	return nil
}
