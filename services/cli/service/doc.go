// Package service has `quartet service`: the server of this user as a service of systemd or launchd, which starts it
// when the user logs in and after it has failed.
//
// Owns: the unit or the property list, and asking the service manager to load it.
// Never does: remove data, or write a credential into it.
// Reads: the definition that is installed, and the state that the service manager reports.
// Emits: that definition.
package service
