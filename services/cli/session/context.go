package session

import (
	"fmt"
	"os"
	"path/filepath"

	"quartet/services/cli/exit"
)

// applyContext takes from the chosen context what neither a flag nor a variable says. Where one of these names an
// address, no context applies: its credential is for another server.
func (s *Session) applyContext() error {
	if !s.unset("address") {
		return nil
	}
	c, err := chosenContext(os.Getenv(ContextVariable))
	if err != nil || c == nil {
		return err
	}
	s.address = c.Address
	if s.unset("token") {
		if s.token, err = c.Token(); err != nil {
			return err
		}
		s.contextToken = c.TokenFile
	}
	s.tls = s.tls || c.TLS
	for _, file := range []struct {
		setting, from string
		to            *string
	}{
		{"tls-ca-file", c.CAFile, &s.tlsFiles.CA},
		{"tls-cert-file", c.CertFile, &s.tlsFiles.Cert},
		{"tls-key-file", c.KeyFile, &s.tlsFiles.Key},
	} {
		if s.unset(file.setting) {
			*file.to = file.from
		}
	}
	return nil
}

// unset reports whether neither a flag nor a variable gives a setting.
func (s *Session) unset(setting string) bool { return s.settings.Origin(setting) == "default" }

// Typed returns as a context the server that flags and variables name. tokenFile is the file with the credential; if it
// is empty, the one that QUARTET_TOKEN_FILE names. A credential on the command line or in QUARTET_TOKEN is an error: a
// context keeps none.
func (s *Session) Typed(tokenFile string) (Context, error) {
	if err := s.settings.Load(""); err != nil {
		return Context{}, exit.UsageError(err.Error())
	}
	if tokenFile == "" {
		if tokenFile = os.Getenv("QUARTET_TOKEN_FILE"); tokenFile == "" && s.token != "" {
			return Context{}, exit.UsageError("a context keeps no credential, only the name of its file; " +
				"give it with --token-file")
		}
	}
	if s.unset("address") {
		return Context{}, exit.UsageError("--address is missing: the gRPC address of the server, host:port")
	}
	if err := s.checkAddress(); err != nil {
		return Context{}, err
	}
	c := Context{Address: s.address, TLS: s.tls}
	for _, file := range []struct {
		from string
		to   *string
	}{
		{tokenFile, &c.TokenFile},
		{s.tlsFiles.CA, &c.CAFile},
		{s.tlsFiles.Cert, &c.CertFile},
		{s.tlsFiles.Key, &c.KeyFile},
	} {
		if file.from == "" {
			continue
		}
		abs, err := filepath.Abs(file.from)
		if err != nil {
			return c, fmt.Errorf("%s: %w", file.from, err)
		}
		*file.to = abs
	}
	return c, nil
}
