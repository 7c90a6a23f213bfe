package conf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Env is the prefix of environment variables.
const Env = "QUARTET_"

// Row describes one setting for documents and for `config show`.
type Row struct {
	Name    string // flag and file key
	Type    string // string, secret, bool, int, float, duration, strings, map
	Default string // never the value of a secret
	Env     string
	Help    string
}

// Set is a collection of settings over one pflag.FlagSet.
type Set struct {
	flags  *pflag.FlagSet
	types  map[string]string
	names  []string          // in order of declaration
	origin map[string]string // by name, what Origin returns
	// secretFiles is what SecretFiles returns.
	secretFiles map[string]string
	getenv      func(string) (string, bool)
	// environ returns the environment as os.Environ does, and known has the variables that were passed to Know.
	environ func() []string
	known   map[string]bool
}

// New returns a Set that declares its flags on flags, which are usually a command's.
func New(flags *pflag.FlagSet) *Set {
	return &Set{
		flags: flags, types: map[string]string{}, origin: map[string]string{}, secretFiles: map[string]string{},
		getenv: os.LookupEnv, environ: os.Environ, known: map[string]bool{},
	}
}

// String declares a text setting.
func (s *Set) String(p *string, name, def, help string) {
	s.flags.StringVar(p, name, def, help)
	s.declare(name, "string")
}

// Secret declares a text setting that has a _FILE variant and is never shown. Its default is
// empty, because a default would be known to everybody.
func (s *Set) Secret(p *string, name, help string) {
	s.flags.StringVar(p, name, "", help)
	s.declare(name, "secret")
}

// Bool declares a boolean setting.
func (s *Set) Bool(p *bool, name string, def bool, help string) {
	s.flags.BoolVar(p, name, def, help)
	s.declare(name, "bool")
}

// Int declares an integer setting.
func (s *Set) Int(p *int, name string, def int, help string) {
	s.flags.IntVar(p, name, def, help)
	s.declare(name, "int")
}

// Float declares a numeric setting.
func (s *Set) Float(p *float64, name string, def float64, help string) {
	s.flags.Float64Var(p, name, def, help)
	s.declare(name, "float")
}

// Duration declares a duration such as 30s or 24h.
func (s *Set) Duration(p *time.Duration, name string, def time.Duration, help string) {
	s.flags.DurationVar(p, name, def, help)
	s.declare(name, "duration")
}

// Strings declares a list: comma-separated in flags and variables, a sequence
// in the file.
func (s *Set) Strings(p *[]string, name string, def []string, help string) {
	s.flags.StringSliceVar(p, name, def, help)
	s.declare(name, "strings")
}

// Map declares key=value pairs, comma-separated in flags and variables, a map
// in the file.
func (s *Set) Map(p *map[string]string, name string, def map[string]string, help string) {
	s.flags.StringToStringVar(p, name, def, help)
	s.declare(name, "map")
}

func (s *Set) declare(name, kind string) {
	s.types[name] = kind
	s.names = append(s.names, name)
}

// EnvName returns the environment variable of a setting.
func EnvName(name string) string {
	return Env + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))
}

// Load sets the settings that no flag has set: from the environment, otherwise from the file at path
// (no file if path is empty); otherwise they keep their default. The flags must have been parsed. If the
// file cannot be read or has unknown settings, or the name of a variable is a misspelt one of a setting
// (see misspelt), Load sets nothing and returns these errors. Otherwise it sets the settings whose values are
// valid, and returns the errors of all others.
func (s *Set) Load(path string) error {
	fromFile, err := s.readFile(path)
	if err := errors.Join(err, s.misspelt()); err != nil {
		return err
	}
	var errs []error
	for _, name := range s.names {
		if from := s.origin[name]; s.flags.Changed(name) && (from == "" || from == "flag") {
			s.origin[name] = "flag"
			continue
		}
		value, origin, found, err := s.fromEnv(name)
		if err == nil && !found {
			value, found = fromFile[name]
			origin = "file"
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if found && origin == "file" && s.types[name] == "secret" {
			s.secretFiles["config"] = path
		}
		if !found {
			s.origin[name] = "default"
			continue
		}
		if err := s.flags.Set(name, value); err != nil {
			errs = append(errs, fmt.Errorf("setting %s from %s: %w", name, origin, s.mask(name, err)))
			continue
		}
		s.origin[name] = origin
	}
	return errors.Join(errs...)
}

// SecretFiles returns the files with secrets that Load read, by what named them: the variable of a secret, or "config"
// for the file of Load if that sets a secret.
func (s *Set) SecretFiles() map[string]string { return maps.Clone(s.secretFiles) }

// Origin returns where the value of a setting came from after Load: flag, env, file or
// default.
func (s *Set) Origin(name string) string { return s.origin[name] }

// Describe returns a row for each setting, sorted by name.
func (s *Set) Describe() []Row {
	rows := make([]Row, 0, len(s.names))
	for _, name := range s.names {
		f := s.flags.Lookup(name)
		row := Row{Name: name, Type: s.types[name], Default: f.DefValue, Env: EnvName(name), Help: f.Usage}
		switch row.Type {
		case "strings", "map": // pflag writes "[a,b]"
			row.Default = strings.TrimSuffix(strings.TrimPrefix(row.Default, "["), "]")
		case "secret":
			row.Env += " or " + row.Env + "_FILE"
		}
		rows = append(rows, row)
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i].Name < rows[j].Name })
	return rows
}

func (s *Set) fromEnv(name string) (value, origin string, found bool, err error) {
	env := EnvName(name)
	value, found = s.getenv(env)
	if s.types[name] != "secret" {
		return value, "env", found, nil
	}
	path, hasFile := s.getenv(env + "_FILE")
	switch {
	case found && hasFile:
		return "", "", false, fmt.Errorf("both %s and %s_FILE are set; keep one", env, env)
	case !hasFile:
		return value, "env", found, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", "", false, fmt.Errorf("%s_FILE: %w", env, err)
	}
	s.secretFiles[env+"_FILE"] = path
	// Editors and echo end files with a newline that is not part of the secret.
	return strings.TrimRight(string(raw), "\r\n"), "env", true, nil
}

// mask returns err, the error of a value for the setting name. For a secret it returns another
// error instead, because the text of err may contain the value. err must not be nil.
func (s *Set) mask(name string, err error) error {
	if s.types[name] == "secret" {
		return errors.New("not a valid secret")
	}
	return err
}

// readFile returns the settings of the file, with values in the form that flags have. It returns an error
// for keys that are not declared, so that a misspelt setting is not silently ignored.
func (s *Set) readFile(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("configuration file %s: %w", path, err)
	}
	out := map[string]string{}
	if len(doc.Content) == 0 {
		return out, nil
	}
	var errs []error
	s.collect("", doc.Content[0], out, &errs)
	if len(errs) > 0 {
		return nil, fmt.Errorf("configuration file %s: %w", path, errors.Join(errs...))
	}
	return out, nil
}

func (s *Set) collect(name string, n *yaml.Node, out map[string]string, errs *[]error) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	kind, known := s.types[name]
	switch {
	case known:
		value, err := text(kind, n)
		if _, twice := out[name]; twice && err == nil {
			err = errors.New("given twice")
		}
		if err != nil {
			*errs = append(*errs, fmt.Errorf("line %d: %s: %w", n.Line, name, err))
			return
		}
		out[name] = value
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if name != "" {
				key = name + "-" + key
			}
			s.collect(key, n.Content[i+1], out, errs)
		}
	case name == "":
		*errs = append(*errs, fmt.Errorf("line %d: must be a map of settings", n.Line))
	default:
		*errs = append(*errs, fmt.Errorf("line %d: unknown setting %q", n.Line, name))
	}
}

// text formats a node as the setting's flag parses it.
func text(kind string, n *yaml.Node) (string, error) {
	switch kind {
	case "strings":
		if n.Kind != yaml.SequenceNode {
			break
		}
		items := make([]string, len(n.Content))
		for i, c := range n.Content {
			if c.Kind != yaml.ScalarNode {
				return "", errors.New("must be a list of texts")
			}
			items[i] = csvField(c.Value)
		}
		return strings.Join(items, ","), nil
	case "map":
		if n.Kind != yaml.MappingNode {
			break
		}
		pairs := make([]string, 0, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i+1].Kind != yaml.ScalarNode {
				return "", errors.New("must be a map of texts")
			}
			pairs = append(pairs, csvField(n.Content[i].Value+"="+n.Content[i+1].Value))
		}
		return strings.Join(pairs, ","), nil
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return "", fmt.Errorf("must be a %s", kind)
	}
	return n.Value, nil
}

// csvField quotes a value that pflag's comma-separated lists would split.
func csvField(s string) string {
	if strings.ContainsAny(s, ",\"\r\n") {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

// Markdown returns rows as the table of docs/configuration.md.
func Markdown(rows []Row) string {
	var b strings.Builder
	b.WriteString("| setting | type | default | environment | meaning |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		def := ""
		if r.Default != "" {
			def = "`" + r.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s |\n", r.Name, r.Type, def,
			strings.ReplaceAll(r.Env, " or ", "` or `"), strings.ReplaceAll(r.Help, "|", `\|`))
	}
	return b.String()
}
