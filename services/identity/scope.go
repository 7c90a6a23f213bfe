package identity

import (
	"quartet/pkg/fault"
	identityv1 "quartet/pkg/pb/quartet/identity/v1"
	"quartet/pkg/rpc"
)

// scopeOf returns the namespace whose records an admin may administer, and "" for an admin of the
// installation, who administers those of all (SPEC I15).
func scopeOf(a rpc.Actor) string {
	if a.Has(rpc.RoleInstallationAdmin) {
		return ""
	}
	return a.Namespace
}

// administers returns an error unless an admin may administer a namespace.
func administers(a rpc.Actor, namespace string) error {
	if scope := scopeOf(a); scope != "" && scope != namespace {
		return fault.PermissionDenied.Newf("an admin of namespace %s does not administer namespace %s; an "+
			"installation_admin does", scope, namespace).
			With("namespace", namespace).With("role", a.Role)
	}
	return nil
}

// mayIssue returns an error unless an admin may create and revoke keys of a role. Keys of role
// installation_admin are reserved to admins of the installation.
func mayIssue(a rpc.Actor, role identityv1.Role) error {
	if role == identityv1.Role_ROLE_INSTALLATION_ADMIN && !a.Has(rpc.RoleInstallationAdmin) {
		return fault.PermissionDenied.Newf("keys of role installation_admin are created and revoked by an "+
			"installation_admin, not by role %s", a.Role).
			With("role", a.Role)
	}
	return nil
}
