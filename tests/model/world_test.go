package model

import (
	"quartet/tests/planes"
)

var epoch = planes.Epoch

// hang is how long a barrier may take before the run is given up as hanging. It
// decides nothing else.
const hang = planes.Hang

// world is the services of a run and their only worker, which joins the task plane again
// whenever that is started anew.
type world struct {
	*planes.World
	worker *worker
}

func newWorld(home string) (*world, error) {
	w := &world{}
	var err error
	w.World, err = planes.New(planes.Config{
		Home: home,
		Started: func(name string) (err error) {
			if name == "task" && w.World != nil {
				w.worker, err = w.connect(w.worker)
			}
			return err
		},
		Stopping: func(name string) {
			if name == "task" && w.worker != nil {
				w.worker.leave()
			}
		},
	})
	if err == nil {
		w.worker, err = w.connect(nil)
	}
	return w, err
}
