// Package console tests the web console in a browser, against the real binary.
package console
