package app

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"quartet/pkg/confine"
	"quartet/pkg/sandboxes"
	"quartet/services/worker"
)

// The values of the setting embedded-worker.
const (
	EmbeddedAuto = "auto"
	EmbeddedOn   = "on"
	EmbeddedOff  = "off"
)

// checkConfinement checks and completes the settings of the worker's confinement.
func (c *Config) checkConfinement() error {
	switch c.EmbeddedWorker {
	case "", EmbeddedAuto, EmbeddedOn, EmbeddedOff:
	default:
		return fmt.Errorf("embedded-worker is %q; it must be %s, %s or %s", c.EmbeddedWorker, EmbeddedAuto, EmbeddedOn,
			EmbeddedOff)
	}
	if c.WorkerNetwork == "" {
		c.WorkerNetwork = string(confine.NetworkOutside)
	}
	if _, err := confine.ParseNetwork(c.WorkerNetwork); err != nil {
		return fmt.Errorf("worker-network: %w", err)
	}
	isolate, err := worker.ParseIsolation(c.WorkerIsolate)
	if err != nil {
		return fmt.Errorf("worker-isolate: %w", err)
	}
	if isolate != worker.IsolateNone && len(c.WorkerRoots) > 1 {
		return fmt.Errorf("worker-isolate is %s and divides one directory, but worker-roots has %d; name the other "+
			"ones in worker-readable", isolate, len(c.WorkerRoots))
	}
	for name, paths := range map[string][]string{"worker-readable": c.WorkerReadable, "worker-hidden": c.WorkerHidden} {
		for _, path := range paths {
			if !filepath.IsAbs(path) {
				return fmt.Errorf("%s: %q must be an absolute path", name, path)
			}
		}
	}
	return nil
}

// executes reports whether a process that serves the worker executes commands. A process with only some services
// always does. For one with all services embedded-worker decides; auto means unless credentials are required, because
// the operator must ask for commands beside the keys of an installation, and unless the only root would be the home.
func (c *Config) executes() bool {
	switch {
	case len(c.Serve) < len(Services), c.EmbeddedWorker == EmbeddedOn:
		return true
	case c.EmbeddedWorker == EmbeddedOff:
		return false
	}
	return c.Auth != AuthRequired && !c.rootIsHome
}

// confinement returns how commands of the worker in this process are confined, nil if they are
// not.
func (c *Config) confinement() (*sandboxes.Config, error) {
	if c.rootIsHome {
		return nil, fmt.Errorf("worker-roots: %s is the home of this user or contains it, and commands could change "+
			"what other programs execute there; start in the directory of a project, or name directories",
			c.WorkerRoots[0])
	}
	if c.WorkerUnconfined {
		return nil, nil
	}
	if len(c.WorkerConfiner) == 0 {
		return nil, errors.New("this program cannot confine commands; set worker-unconfined")
	}
	s := &sandboxes.Config{
		Helper: c.WorkerConfiner, Network: confine.Network(c.WorkerNetwork),
		Readable: c.WorkerReadable, Hidden: slices.Concat(c.WorkerHidden, []string{c.DataDir, c.HomeDir}),
	}
	files := c.NATS.Files()
	maps.Copy(files, c.SecretFiles)
	maps.Copy(files, map[string]string{
		"key-file": c.KeyFile, "tls-key-file": c.TLS.Key,
		"oidc-client-secret-file": c.SignIn.SecretFile, "archive-credentials-file": c.Archive.CredentialsFile,
	})
	return s, s.HideFiles(files, c.WorkerRoots)
}
