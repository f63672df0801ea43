// Package upstream holds the code that depends on behaviour of the Kubernetes libraries that
// their API does not promise: process-wide variables, unexported state, constructors with
// many positional arguments, and informers of which the libraries call a few methods only.
//
// Each assumption has a test that fails when a new version of the libraries breaks it, and a
// comment that begins "At the next minor version". Code elsewhere that was written after the
// model of a function of the libraries is listed in testdata/functions.txt, with a fingerprint
// of that function. [texts] holds the messages that other packages compare with.
//
// [texts]: github.com/unforked/kcp/internal/upstream/texts
package upstream

import (
	"errors"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagefeature "k8s.io/apiserver/pkg/storage/feature"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
)

// maxCopied limits the bytes that a JSON patch may copy: upstream's default.
const maxCopied = 3 << 20

// SetGlobals sets the process-wide variables of the libraries. All servers of a process share
// them. Calls after the first have no effect. It never fails: a gate that a new version of the
// libraries removes or locks keeps the value of the libraries.
var SetGlobals = sync.OnceFunc(func() {
	boundMetrics()
	boundQuantities()
	registerMetrics()
	jsonpatch.AccumulatedCopySizeLimit = maxCopied
	storagefeature.DefaultFeatureSupportChecker = everyFeature{storagefeature.DefaultFeatureSupportChecker}
	for gate, err := range setGates(utilfeature.DefaultMutableFeatureGate, FixedGates()) {
		klog.Background().Error(err, "Feature gate of the libraries keeps its value", "gate", gate)
	}
})

// FixedGates returns the feature gates with another value than the libraries' default. Operators
// cannot set them.
//
// At the next minor version: look at whether the gates still exist and are not locked, in
// k8s.io/apiserver/pkg/features. If one is locked to true, remove it here and measure the
// memory of a workspace and the load of etcd.
func FixedGates() map[featuregate.Feature]bool {
	return map[featuregate.Feature]bool{
		// It lists every resource of all clusters again every few minutes.
		features.DetectCacheInconsistency: false,
		// It copies a part of the cache's index with each event. That is a third of the memory
		// of a workspace. Lists of earlier revisions are read from etcd instead.
		features.ListFromCacheSnapshot: false,
	}
}

// setGates sets each gate that exists and can be set, and returns the errors of the others.
func setGates(to featuregate.MutableVersionedFeatureGate, values map[featuregate.Feature]bool) map[featuregate.Feature]error {
	failed := map[featuregate.Feature]error{}
	for gate, value := range values {
		known := to.GetAll()
		spec, ok := known[gate]
		switch {
		case !ok:
			failed[gate] = errors.New("the libraries have no such feature gate")
		case spec.LockToDefault && spec.Default != value:
			// SetFromMap would keep the rejected value, and every later call would fail.
			failed[gate] = errors.New("the libraries have locked this feature gate")
		default:
			if err := to.SetFromMap(map[string]bool{string(gate): value}); err != nil {
				failed[gate] = err
			}
		}
	}
	return failed
}

// everyFeature reports that etcd supports every feature. The library would ask each endpoint
// for its version, and an etcd in this process has no endpoint.
//
// At the next minor version: look at the features in k8s.io/apiserver/pkg/storage, and whether
// the oldest etcd that docs/operating.md allows supports all of them.
type everyFeature struct {
	storagefeature.FeatureSupportChecker
}

// Supports implements [storagefeature.FeatureSupportChecker].
func (everyFeature) Supports(storage.Feature) bool { return true }
