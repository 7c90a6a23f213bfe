package local

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	unitName = "quartet.service"
	label    = "dev.quartet.server"
)

// manager is a service manager: how a service is defined for it, and the commands that it takes.
type manager struct {
	name string
	// path returns where the definition is, for a user with this home directory.
	path func(home string) string
	// define returns the definition of a service that runs a program with arguments. Its output goes to the file log
	// if the manager keeps no log itself.
	define func(program string, args []string, log string) string
	// load starts the service now and at each login; unload stops it and ends that; refresh makes the manager read
	// definitions again, nil if it need not; active succeeds if the service runs.
	load, unload, refresh, active []string
	// note says what else there is to know.
	note string
}

// systemd is the service manager of a user on Linux.
func systemd() manager {
	return manager{
		name: "systemd",
		path: func(home string) string {
			dir := os.Getenv("XDG_CONFIG_HOME")
			if !filepath.IsAbs(dir) {
				dir = filepath.Join(home, ".config")
			}
			return filepath.Join(dir, "systemd", "user", unitName)
		},
		define: func(program string, args []string, _ string) string {
			words := []string{quoteUnit(program), "dev"}
			for _, a := range args {
				words = append(words, quoteUnit(a))
			}
			return "# Written by quartet service install.\n[Unit]\nDescription=Quartet, a durable control plane for " +
				"AI agents\n\n" +
				"[Service]\nType=exec\nExecStart=" + strings.Join(words, " ") +
				"\nRestart=on-failure\nRestartSec=2\nTimeoutStopSec=30\nUMask=0077\n\n" +
				"[Install]\nWantedBy=default.target\n"
		},
		refresh: []string{"systemctl", "--user", "daemon-reload"},
		load:    []string{"systemctl", "--user", "enable", "--now", unitName},
		unload:  []string{"systemctl", "--user", "disable", "--now", unitName},
		active:  []string{"systemctl", "--user", "is-active", "--quiet", unitName},
		note: "It runs while you are logged in; to let it run always: loginctl enable-linger. Its log: journalctl " +
			"--user -u " + unitName,
	}
}

// quoteUnit quotes a word of a command line in a unit, in which %, $, quotes and backslashes have meanings.
func quoteUnit(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$", "\n", `\n`).Replace(s) + `"`
}

// launchd is the service manager of a user on macOS.
func launchd(uid int) manager {
	domain := fmt.Sprintf("gui/%d", uid)
	path := func(home string) string { return filepath.Join(home, "Library", "LaunchAgents", label+".plist") }
	home, _ := os.UserHomeDir() // without one, install fails before these are used
	return manager{
		name: "launchd", path: path,
		define: func(program string, args []string, log string) string {
			var b strings.Builder
			b.WriteString(xml.Header +
				`<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">` + "\n")
			b.WriteString("<!-- Written by quartet service install. -->\n<plist version=\"1.0\">\n<dict>\n  " +
				"<key>Label</key><string>" + label + "</string>\n  <key>ProgramArguments</key>\n  <array>\n")
			for _, a := range append([]string{program, "dev"}, args...) {
				b.WriteString("    <string>" + escape(a) + "</string>\n")
			}
			b.WriteString("  </array>\n  <key>RunAtLoad</key><true/>\n  " +
				"<key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>\n  " +
				"<key>ProcessType</key><string>Background</string>\n")
			b.WriteString("  <key>StandardOutPath</key><string>" + escape(log) +
				"</string>\n  <key>StandardErrorPath</key><string>" + escape(log) +
				"</string>\n  <key>Umask</key><integer>63</integer>\n</dict>\n</plist>\n")
			return b.String()
		},
		load:   []string{"launchctl", "bootstrap", domain, path(home)},
		unload: []string{"launchctl", "bootout", domain + "/" + label},
		active: []string{"launchctl", "print", domain + "/" + label},
	}
}

// escape returns s as the text of an XML element.
func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder does not fail
	return b.String()
}
