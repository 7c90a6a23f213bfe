package app

import (
	"slices"

	"quartet/services/identity"
)

// allowed reports whether the table of roles allows a role to call a method (SPEC X15).
func allowed(role, method string) bool {
	roles, _ := identity.Allowed(method)
	return slices.Contains(roles, role)
}
