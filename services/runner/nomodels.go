//go:build nomodels

package runner

import (
	"errors"
	"net/http"
)

// The providers' SDKs take as long to compile as everything else together, and
// only quartet run needs them: -tags nomodels leaves them out.

func newModel(Config, *http.Client) (Model, error) {
	return nil, errors.New("this quartet was built without model providers (-tags nomodels): quartet run needs one that has them, as make build makes it")
}

func streamError(error) (event string, ok bool) { return "", false }
