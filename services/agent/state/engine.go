package state

import "quartet/pkg/plane"

// Engine runs the partitions of the agent plane.
type Engine = plane.Engine[*State]
