package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"

	"github.com/unforked/kcp/internal/upstream"
)

// gates is the flag --feature-gates. Gates of the existing kcp are accepted and have no
// effect: their features are always on once they exist. All others are gates of the
// Kubernetes libraries.
type gates map[string]bool

// accepted are the gates of the existing kcp.
var accepted = []string{
	"WorkspaceMounts", "CacheAPIs", "WorkspaceAuthentication", "LogicalClusterMigration",
	"EnableDeprecatedAPIExportVirtualWorkspacesUrls", "StorageVersionAPI",
}

// String implements pflag.Value.
func (g gates) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(g)) {
		all = append(all, name+"="+strconv.FormatBool(g[name]))
	}
	return strings.Join(all, ",")
}

// Type implements pflag.Value.
func (gates) Type() string { return "gate=true|false,..." }

// Set implements pflag.Value.
func (g gates) Set(text string) error {
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		on, err := strconv.ParseBool(value)
		if !ok || name == "" || err != nil {
			return fmt.Errorf("%q must be a gate's name, =, and true or false", pair)
		}
		_, known := utilfeature.DefaultMutableFeatureGate.GetAll()[featuregate.Feature(name)]
		if fixed, ok := upstream.FixedGates()[featuregate.Feature(name)]; ok && fixed != on {
			return fmt.Errorf("the feature gate %s is always %t here: workspaces share what it changes; leave it out", name, fixed)
		}
		if !known && !slices.Contains(accepted, name) {
			return fmt.Errorf("there is no feature gate %q; leave it out, or check its spelling", name)
		}
		g[name] = on
	}
	return nil
}

// usage describes the flag, with the gates that can be set.
func (gates) usage() string {
	known := slices.DeleteFunc(utilfeature.DefaultFeatureGate.KnownFeatures(), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		_, fixed := upstream.FixedGates()[featuregate.Feature(name)]
		return fixed
	})
	return "Feature gates of the Kubernetes libraries, for experts. Gates of the existing kcp are accepted and have no effect. Options are:\n" + strings.Join(known, "\n")
}

// apply sets the gates of the libraries.
func (g gates) apply() error {
	theirs := maps.Clone(g)
	maps.DeleteFunc(theirs, func(name string, _ bool) bool { return slices.Contains(accepted, name) })
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(theirs); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	return nil
}
