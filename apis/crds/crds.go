// Package crds holds the CustomResourceDefinitions of this project's kinds,
// generated from the Go types.
package crds

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.yaml
var files embed.FS

// Names returns the names of the definitions that the server serves, as in
// "workspaces.tenancy.kcp.io", in a fixed order.
func Names() []string {
	return []string{
		"apibindings.apis.kcp.io",
		"apiconversions.apis.kcp.io",
		"apiexportendpointslices.apis.kcp.io",
		"apiexportrollouts.apis.kcp.io",
		"apiexports.apis.kcp.io",
		"apiresourceschemas.apis.kcp.io",
		"clustercachedresourceendpointslices.cache.kcp.io",
		"clustercachedresources.cache.kcp.io",
		"logicalclusters.core.kcp.io",
		"partitions.topology.kcp.io",
		"partitionsets.topology.kcp.io",
		"shards.core.kcp.io",
		"workspaceauthenticationconfigurations.tenancy.kcp.io",
		"workspaces.tenancy.kcp.io",
		"workspacetypes.tenancy.kcp.io",
	}
}

// All returns the names of all definitions, also of those that the server does not serve
// yet, in a fixed order.
func All() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // a bug: the files are part of the program
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		group, plural, _ := strings.Cut(strings.TrimSuffix(e.Name(), ".yaml"), "_")
		names = append(names, plural+"."+group)
	}
	return names
}

// YAML returns the definition with the given name.
func YAML(name string) ([]byte, error) {
	plural, group, _ := strings.Cut(name, ".")
	b, err := files.ReadFile(group + "_" + plural + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("there is no CustomResourceDefinition %q in this program, only %q", name, All())
	}
	return b, nil
}
