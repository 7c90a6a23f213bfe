package console

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

const (
	// CodeTerm is how long a one-time code is valid.
	CodeTerm = time.Minute
	// maxUsed bounds the codes that are remembered as used. Each is remembered for at most CodeTerm, so
	// it is also how many sessions can be begun by code within CodeTerm.
	maxUsed = 10_000
)

// madeCode is the response of POST /ui/code.
type madeCode struct {
	Code      string    `json:"code"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// makeCode responds with a one-time code, with which POST /ui/session begins a session with the caller's credential.
// The credential must be in the header Authorization, so that a session cannot be used to begin another one.
func (c *Console) makeCode(w http.ResponseWriter, r *http.Request) error {
	const scheme = "bearer "
	bearer := r.Header.Get("Authorization")
	if len(bearer) <= len(scheme) || !strings.EqualFold(bearer[:len(scheme)], scheme) {
		return fault.Unauthenticated.New("a code is made for a credential; send Authorization: Bearer KEY")
	}
	credential := bearer[len(scheme):]
	actor, err := c.deps.Auth.Authenticate(r.Context(), credential)
	if err != nil {
		return err
	}
	if actor.Role == rpc.RoleService {
		return fault.Unauthenticated.New("services have no sessions; use an API key of a person")
	}
	t := c.ticketOf(credential, CodeTerm)
	code, err := c.seal(codePurpose, t)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(madeCode{Code: code, ExpiresAt: time.Unix(t.Ends, 0).UTC()})
}

// redeem returns the credential of a one-time code, and remembers the code as used. It returns UNAUTHENTICATED for a
// code that is not valid, has expired or was used, and OVERLOADED if maxUsed codes are remembered.
func (c *Console) redeem(code string) (string, error) {
	t, err := c.open(codePurpose, code)
	if err != nil {
		return "", fault.Unauthenticated.New("the one-time code is not valid; it ends 60 seconds after it was made. " +
			"Run quartet console again, or sign in with a key")
	}
	now := c.deps.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, ends := range c.used {
		if !now.Before(ends) {
			delete(c.used, id)
		}
	}
	if _, twice := c.used[t.ID]; twice {
		return "", fault.Unauthenticated.New("the one-time code was used before. Run quartet console again, or sign " +
			"in with a key")
	}
	if len(c.used) >= maxUsed {
		return "",
			fault.Overloaded.Newf("%d sessions were begun by code within a minute; repeat the request in a minute",
				maxUsed).WithRetryAfter(CodeTerm)
	}
	c.used[t.ID] = time.Unix(t.Ends, 0)
	return t.Credential, nil
}
