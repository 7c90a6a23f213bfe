//go:build nomodels

package runner

import (
	"errors"
	"net/http"
)

// The build tag nomodels omits the providers' SDKs, which take as long to compile as
// everything else and are only needed by quartet run.

// newModel fails: there are no providers in this build.
func newModel(Config, *http.Client) (Model, error) {
	return nil, errors.New("this quartet was built without model providers (-tags nomodels): quartet run needs a " +
		"binary with them, such as that of make build")
}

// streamError reports false: there are no streams in this build.
func streamError(error) (event string, ok bool) { return "", false }
