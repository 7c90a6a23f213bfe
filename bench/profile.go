package main

import (
	"errors"
	"os"
	"runtime/pprof"
)

// profile starts the profiles of --cpuprofile and --memprofile, and returns the function that ends
// and writes them.
func (o *options) profile() (stop func() error, err error) {
	var cpu *os.File
	if o.cpu != "" {
		if cpu, err = os.Create(o.cpu); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return nil, errors.Join(err, cpu.Close())
		}
	}
	return func() error {
		var errs []error
		if cpu != nil {
			pprof.StopCPUProfile()
			errs = append(errs, cpu.Close())
		}
		if o.mem != "" {
			f, err := os.Create(o.mem)
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			errs = append(errs, pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
		}
		return errors.Join(errs...)
	}, nil
}

// writeHeap writes a heap profile, as of the last garbage collection, to a file, which it creates or truncates.
func writeHeap(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("heap").WriteTo(f, 0), f.Close())
}
