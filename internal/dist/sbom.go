package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// bill returns the bill of materials of a program in CycloneDX JSON: the Go modules that
// the linker recorded in it.
func (r *release) bill(program string, p platform, file string) ([]byte, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	main := module(info.Main.Path, r.version, "")
	main.Type, main.Name = cyclonedx.ComponentTypeApplication, program
	main.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	main.Properties = &[]cyclonedx.Property{{Name: "go:platform", Value: p.String()}, {Name: "git:commit", Value: r.commit}}

	components := []cyclonedx.Component{module("std", info.GoVersion, "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			return nil, fmt.Errorf("%s replaces %s: a bill of materials needs published versions", file, m.Path)
		}
		components = append(components, module(m.Path, m.Version, m.Sum))
	}
	var references []string
	for _, c := range components {
		references = append(references, c.BOMRef)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.time.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &references}}
	var text bytes.Buffer
	err = cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return text.Bytes(), err
}

// module returns the component for a Go module. sum is its hash in the format of go.sum.
func module(path, version, sum string) cyclonedx.Component {
	url := "pkg:golang/" + strings.ToLower(path) + "@" + version
	c := cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: url, Name: path, Version: version, PackageURL: url}
	if raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(raw) == sha256.Size {
		c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(raw)}}
	}
	return c
}
