package app

import (
	"slices"

	"quartet/services/identity"
)

// allowed says whether a role may call a method by the table of roles (SPEC X15).
func allowed(role, method string) bool {
	roles, _ := identity.Allowed(method)
	return slices.Contains(roles, role)
}
