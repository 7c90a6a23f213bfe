package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgramKeepsALinkToIt(t *testing.T) {
	file, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	link, other := filepath.Join(dir, "quartet"), filepath.Join(dir, "other")
	require.NoError(t, os.Symlink(file, link))
	require.NoError(t, os.WriteFile(other, []byte("#!/bin/sh\n"), 0o700))
	t.Setenv("PATH", dir)
	t.Chdir(dir)
	for name, want := range map[string]string{
		// by its path, by PATH, and from the working directory
		file: file, link: link, "quartet": link, "./quartet": link,
		other: file, "missing": file, "": file, filepath.Join(dir, "missing"): file,
	} {
		got, err := program(name)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
}
