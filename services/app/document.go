package app

import (
	"os"
	"strings"

	"github.com/spf13/pflag"

	"quartet/pkg/conf"
)

// ConfigurationDocument returns docs/configuration.md: every setting, generated from the
// declarations.
func ConfigurationDocument() string {
	var c Config
	s := c.Flags(pflag.NewFlagSet("document", pflag.ContinueOnError))
	rows := s.Describe()
	home, err := os.UserHomeDir()
	for i := range rows {
		// The home directory is the only default that depends on the machine.
		if err == nil && home != "/" {
			rows[i].Default = strings.Replace(rows[i].Default, home, "~", 1)
		}
	}
	return "# Configuration\n\nSettings of `quartet dev` and `quartet serve`. A flag wins over the environment, that " +
		"over the\n" +
		"file named by `--config`, that over the default. This page is generated from the code.\n\n" +
		conf.Markdown(rows)
}
