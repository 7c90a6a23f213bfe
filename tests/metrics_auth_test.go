package tests

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/services/app"
)

// TestI11_MetricsWithACredential: where metrics demand a credential, on either port, a key of an
// admin, an operator or an integration reads them, and nobody else.
func TestI11_MetricsWithACredential(t *testing.T) {
	h := newHouse(t, func(cfg *app.Config) { cfg.MetricsAuth, cfg.MetricsAddr = app.AuthRequired, "127.0.0.1:0" })
	own := &house{cfg: h.cfg, app: h.app}
	own.cfg.HTTPAddr = h.app.MetricsAddr()
	want := map[identityv1.Role]int{
		identityv1.Role_ROLE_ADMIN: http.StatusOK, identityv1.Role_ROLE_OPERATOR: http.StatusOK,
		identityv1.Role_ROLE_INTEGRATION: http.StatusOK,
		identityv1.Role_ROLE_RUNNER:      http.StatusForbidden, identityv1.Role_ROLE_WORKER: http.StatusForbidden,
	}
	for _, at := range []*house{h, own} {
		require.Equal(t, http.StatusUnauthorized, at.rest(t, "", "GET", "/metrics", "").status)
		require.Equal(t, http.StatusUnauthorized, at.rest(t, "qk_guess", "GET", "/metrics", "").status)
		for role, status := range want {
			_, key := h.key(t, &identityv1.CreateKeyRequest{Name: fmt.Sprintf("k-%d", role), Role: role})
			got := at.rest(t, key, "GET", "/metrics", "")
			require.Equal(t, status, got.status, role)
			if status == http.StatusOK {
				require.Contains(t, got.body, "quartet_build_info")
			} else {
				require.NotContains(t, got.body, "quartet_build_info")
			}
		}
	}
	open := newHouse(t, func(cfg *app.Config) { cfg.MetricsAddr = "127.0.0.1:0" })
	require.Equal(t, http.StatusOK, open.rest(t, "", "GET", "/metrics", "").status, "on loopback")
	open.cfg.HTTPAddr = open.app.MetricsAddr()
	require.Equal(t, http.StatusOK, open.rest(t, "", "GET", "/metrics", "").status)
}
