package output

import (
	"context"
	"slices"
	"sync"

	taskv1 "quartet/pkg/pb/quartet/task/v1"
)

// Memory is a Store in memory, for tests and for planes without a broker. Nothing
// survives the process.
type Memory struct {
	mu    sync.Mutex
	kept  int64                  // bytes that are kept of each task
	tasks map[string]*memoryTask // by "namespace/taskID"
}

// memoryTask is the output of one task.
type memoryTask struct {
	chunks []*taskv1.OutputChunk // that are kept, in order
	bytes  int64                 // in these chunks
	end    int64                 // the offset at which the output ends
}

// NewMemory returns a Store that keeps up to kept bytes of each task.
func NewMemory(kept int64) *Memory {
	return &Memory{kept: kept, tasks: make(map[string]*memoryTask)}
}

// Append implements Store.
func (m *Memory) Append(_ context.Context, namespace, taskID string, chunk *taskv1.OutputChunk) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := namespace + "/" + taskID
	t := m.tasks[key]
	if t == nil {
		t = &memoryTask{}
		m.tasks[key] = t
	}
	fresh := newBytes(chunk, t.end)
	if fresh == nil {
		return t.end, nil
	}
	fresh.Data = slices.Clone(fresh.GetData())
	t.chunks = append(t.chunks, fresh)
	t.bytes += int64(len(fresh.GetData()))
	t.end = ChunkEnd(fresh)
	for t.bytes > m.kept && len(t.chunks) > 1 {
		t.bytes -= int64(len(t.chunks[0].GetData()))
		t.chunks = t.chunks[1:]
	}
	return t.end, nil
}

// Read implements Store.
func (m *Memory) Read(_ context.Context, namespace, taskID string, offset int64, limit int) (Piece, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[namespace+"/"+taskID]
	if t == nil || len(t.chunks) == 0 {
		return Piece{}, nil
	}
	p := Piece{Oldest: t.chunks[0].GetOffset(), End: t.end}
	p.Start = resolve(offset, p.Oldest, p.End)
	from, _ := slices.BinarySearchFunc(t.chunks, p.Start+1, func(c *taskv1.OutputChunk, at int64) int {
		if ChunkEnd(c) < at {
			return -1
		}
		return 1
	})
	fill(&p, t.chunks[from:], limit)
	return p, nil
}

// fill adds chunks to p until it has limit bytes, and reports whether it has.
func fill(p *Piece, chunks []*taskv1.OutputChunk, limit int) bool {
	for _, c := range p.Chunks {
		limit -= len(c.GetData())
	}
	for _, c := range chunks {
		if limit <= 0 {
			return true
		}
		part := Cut(c, p.Start, limit)
		if len(part.GetData()) == 0 {
			continue
		}
		if len(p.Chunks) == 0 {
			p.Start = part.GetOffset()
		}
		p.Chunks = append(p.Chunks, part)
		limit -= len(part.GetData())
	}
	return limit <= 0
}

// Trim implements Store. It does nothing, since Append drops what exceeds the kept bytes.
func (m *Memory) Trim(context.Context, string, string) error { return nil }

// Remove implements Store. A later Append begins the output of the task anew.
func (m *Memory) Remove(_ context.Context, namespace, taskID string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tasks, namespace+"/"+taskID)
	return nil
}
