package gateway

import (
	"net/http"
	"strings"

	"quartet/pkg/fault"
	"quartet/pkg/rpc"
)

// metricsRoles are the roles that read metrics where these demand a credential. Runs and workers
// execute what models and boards say, and have no use for them.
var metricsRoles = []string{rpc.RoleAdmin, rpc.RoleOperator, rpc.RoleIntegration}

// Metered serves next, which shows metrics, to callers with a credential of one of metricsRoles
// (SPEC I11), and refuses all others.
func Metered(auth rpc.Authenticator, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bearer := bearerOf(r)
		if bearer == "" {
			refuse(w, r, fault.Unauthenticated.New("metrics need a credential here (metrics-auth); send "+
				"Authorization: Bearer <token>"))
			return
		}
		actor, err := auth.Authenticate(r.Context(), bearer)
		if err == nil && !actor.HasAny(metricsRoles...) {
			err = fault.PermissionDenied.Newf("role %s does not read metrics; use a key of role %s", actor.Role,
				strings.Join(metricsRoles, ", "))
		}
		if err != nil {
			refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}
