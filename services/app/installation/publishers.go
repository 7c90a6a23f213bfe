package installation

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/durationpb"

	"quartet/pkg/bus"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
)

// asking is how many partitions the NATS servers are asked about at once.
const asking = 8

// Publishers returns how far EVENTS is behind the journal of each partition of the planes.
func Publishers(ctx context.Context, nc *nats.Conn, planes []string, partitions func(plane string) int) (
	[]*identityv1.PublisherLag, error,
) {
	if nc == nil {
		return nil, errNoBroker
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, term)
	defer cancel()
	var all []*identityv1.PublisherLag
	for _, plane := range planes {
		for i := range partitions(plane) {
			all = append(all, &identityv1.PublisherLag{Plane: plane, Partition: int32(i)})
		}
	}
	errs, slots := make([]error, len(all)), make(chan struct{}, asking)
	var asked sync.WaitGroup
	for i, of := range all {
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			lag, err := bus.LagOf(ctx, js, of.GetPlane(), int(of.GetPartition()), time.Now())
			of.Frames, of.Behind, errs[i] = int64(lag.Frames), durationpb.New(lag.Behind), err
		})
	}
	asked.Wait()
	return all, errors.Join(errs...)
}
