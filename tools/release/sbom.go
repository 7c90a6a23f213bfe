package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// bill returns a CycloneDX document with the modules of a binary: those that the linker recorded in it, with
// versions and hashes, and the Go release of its standard library. The document has no serial number, since that
// would differ from run to run.
func (r *release) bill(p platform, program string, binary []byte) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(binary)
	root := "pkg:generic/quartet@" + r.version + "?os=" + p.os + "&arch=" + p.arch
	doc := cyclonedx.NewBOM()
	doc.Metadata = &cyclonedx.Metadata{
		Timestamp: r.date.Format(time.RFC3339),
		Component: &cyclonedx.Component{
			BOMRef: root, Type: cyclonedx.ComponentTypeApplication, Name: "quartet", Version: r.version,
			PackageURL: root,
			Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
			Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
			Properties: &[]cyclonedx.Property{{Name: "revision", Value: r.revision}},
		},
	}
	std := "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")
	components := []cyclonedx.Component{{
		BOMRef: std, Type: cyclonedx.ComponentTypeLibrary, Name: "std",
		Version: info.GoVersion, PackageURL: std,
	}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		url := "pkg:golang/" + m.Path + "@" + m.Version
		c := cyclonedx.Component{
			BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version,
			PackageURL: url,
		}
		if encoded, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
			raw, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				return nil, fmt.Errorf("hash of %s: %w", m.Path, err)
			}
			c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(raw)}}
		}
		components = append(components, c)
	}
	refs := make([]string, 0, len(components))
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	doc.Components = &components
	// The linker records which modules there are, and not which of them needs which.
	doc.Dependencies = &[]cyclonedx.Dependency{{Ref: root, Dependencies: &refs}}
	var out bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).
		EncodeVersion(doc, cyclonedx.SpecVersion1_6); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
