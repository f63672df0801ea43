package upstream

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/storage"
	storagefeature "k8s.io/apiserver/pkg/storage/feature"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// The libraries still have the gates that the server sets, and do not lock them.
func TestGates(t *testing.T) {
	SetGlobals()
	for gate, want := range FixedGates() {
		spec, ok := utilfeature.DefaultMutableFeatureGate.GetAll()[gate]
		if !ok || spec.LockToDefault || spec.PreRelease == featuregate.GA {
			t.Errorf("%s: %+v; remove it from FixedGates and measure again what it costs", gate, spec)
			continue
		}
		if spec.Default == want {
			t.Errorf("%s is %v by default; remove it from FixedGates", gate, want)
		}
		if got := utilfeature.DefaultFeatureGate.Enabled(gate); got != want {
			t.Errorf("%s is %v, want %v", gate, got, want)
		}
	}
}

// A gate that the libraries lock or remove does not keep the server from starting. The other
// gates are set, and can be set again.
func TestGatesThatCannotBeSet(t *testing.T) {
	const locked, free, gone featuregate.Feature = "Locked", "Free", "Gone"
	to := featuregate.NewFeatureGate()
	if err := to.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		locked: {Default: true, LockToDefault: true, PreRelease: featuregate.GA},
		free:   {Default: true, PreRelease: featuregate.Beta},
	}); err != nil {
		t.Fatal(err)
	}
	failed := setGates(to, map[featuregate.Feature]bool{locked: false, free: false, gone: false})
	if len(failed) != 2 || failed[locked] == nil || failed[gone] == nil {
		t.Errorf("failed: %v", failed)
	}
	if !to.Enabled(locked) || to.Enabled(free) {
		t.Errorf("locked %v, free %v", to.Enabled(locked), to.Enabled(free))
	}
	if err := to.SetFromMap(map[string]bool{string(free): true}); err != nil || !to.Enabled(free) {
		t.Errorf("set again: %v, %v", to.Enabled(free), err)
	}
	if failed := setGates(to, map[featuregate.Feature]bool{locked: true}); len(failed) != 0 {
		t.Errorf("a gate that is locked to the wanted value: %v", failed)
	}
}

// The only feature that the libraries ask for is one that every supported etcd has. Another one
// would be logged as not implemented by the library's own checker.
func TestStorageFeatures(t *testing.T) {
	SetGlobals()
	if !storagefeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress) {
		t.Error("progress requests are not supported")
	}
	source := sourceOf(t, "k8s.io/apiserver/pkg/storage/feature", "defaultFeatureSupportChecker.Supports")
	if cases := regexp.MustCompile(`case storage\.\w+`).FindAllString(source, -1); len(cases) != 1 || cases[0] != "case storage.RequestWatchProgress" {
		t.Errorf("the library knows %v; look at whether every etcd supports them", cases)
	}
}

// The cache of patterns is the one that validation uses, and can be cleared.
func TestForgetPatterns(t *testing.T) {
	const limit = 1000
	for i := range limit + 1 {
		if err := validate.Pattern("", "", "7", fmt.Sprintf("^(7|%d)$", i)); err != nil {
			t.Fatal(err)
		}
	}
	before := patterns()
	if before <= limit {
		t.Fatalf("the library keeps %d patterns", before)
	}
	if forgetPatterns(before); patterns() != before {
		t.Errorf("%d patterns are left of %d, which are not too many", patterns(), before)
	}
	if forgetPatterns(limit); patterns() != 0 {
		t.Errorf("the library still keeps %d patterns", patterns())
	}
	if err := validate.Pattern("", "", "8", "^(7|1)$"); err == nil {
		t.Error("a pattern that was forgotten matches anything")
	}
}

// The versions are those of the libraries in go.mod.
func TestVersions(t *testing.T) {
	gomod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	v := version.MustParseSemantic(Release)
	for _, want := range []string{
		fmt.Sprintf("k8s.io/kubernetes v%d.%d.%d\n", v.Major(), v.Minor(), v.Patch()),
		fmt.Sprintf("k8s.io/apiserver v0.%d.%d\n", v.Minor(), v.Patch()),
	} {
		if !strings.Contains(string(gomod), want) {
			t.Errorf("Release is %s, but go.mod has no %q", Release, want)
		}
	}
	if want := fmt.Sprintf("%d.%d", v.Major(), v.Minor()); Minor != want {
		t.Errorf("Minor is %s, want %s", Minor, want)
	}
	info := NewVersion().Info()
	if info.GitVersion != Release || info.GitCommit != "" || info.Major+"."+info.Minor != Minor {
		t.Errorf("%+v", info)
	}
	if NewRegistry().EffectiveVersionFor("kube") != nil {
		t.Error("a new registry is not empty")
	}
}
