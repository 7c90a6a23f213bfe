package tools

import (
	"regexp"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Planes name methods, messages and enum values in their texts. A model knows tools and
// their arguments, so the names are translated.

// citation matches a reference to a document that a model does not have.
var citation = regexp.MustCompile(` \((?:SPEC|S[0-4])[ -][^)]*\)`)

var identifier = regexp.MustCompile(`\b[A-Za-z][A-Za-z0-9_]*\b`)

// translations maps names of the planes to names of tools, made once from the table.
var translations = sync.OnceValue(func() map[string]string {
	v := map[string]string{}
	for _, t := range Table {
		if method := t.Method[strings.LastIndexByte(t.Method, '/')+1:]; method != t.Name {
			v[method] = t.Name
		}
		addEnumNames(v, t.NewRequest().ProtoReflect().Descriptor())
	}
	return v
})

// addEnumNames adds the names of the enum values that a message's fields may have. The
// name of an unset value becomes empty.
func addEnumNames(v map[string]string, m protoreflect.MessageDescriptor) {
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		if below := fd.Message(); below != nil && below != m &&
			strings.HasPrefix(string(below.FullName()), "quartet.") {
			addEnumNames(v, below)
		}
		if fd.Enum() == nil {
			continue
		}
		values := fd.Enum().Values()
		prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
		for i := range values.Len() {
			name := string(values.Get(i).Name())
			v[name] = strings.ToLower(strings.TrimPrefix(name, prefix))
		}
		v[prefix+"UNSPECIFIED"] = ""
	}
}

// Translate puts a text of a plane into the words of tools: names of methods become names of tools, names of enum
// values become the values that arguments have, and for ExecCommand command.FIELD becomes FIELD. References to
// documents are removed. Text between double quotes is the caller's and is kept, unless it is nothing but the name of
// an enum value.
func (t Tool) Translate(text string) string {
	text = citation.ReplaceAllString(text, "")
	parts := strings.Split(text, `"`)
	for i, part := range parts {
		quoted := i%2 == 1
		parts[i] = identifier.ReplaceAllStringFunc(part, func(w string) string {
			other, known := translations()[w]
			switch {
			case quoted && known && w == strings.ToUpper(w) && w == part:
				return other
			case quoted:
			case known:
				return other
			}
			return w
		})
		if !quoted && t.Name == toolExecCommand {
			for _, f := range commandFields {
				parts[i] = strings.ReplaceAll(parts[i], "command."+f, f)
			}
		}
	}
	return strings.Join(parts, `"`)
}
