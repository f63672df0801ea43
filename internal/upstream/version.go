package upstream

import (
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	basecompatibility "k8s.io/component-base/compatibility"
)

const (
	// Minor is the version of Kubernetes that decides the encodings in etcd.
	//
	// At the next minor version: raise it with the libraries, and look at which built-in kinds
	// get another storage version. An earlier release may then not read the data any more.
	Minor = "1.36"
	// Release is the version at /version: the release of the Kubernetes libraries, as a
	// semantic version. The libraries know their release only from a linker flag.
	Release = "v1.36.3+kcp"
)

// A Version is the effective version of a server.
type Version struct {
	basecompatibility.EffectiveVersion
}

// NewVersion returns the effective version [Minor].
func NewVersion() Version {
	return Version{basecompatibility.NewEffectiveVersionFromString(Minor, Minor, Minor)}
}

// Info returns the response to GET /version.
func (v Version) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	info.GitVersion, info.GitCommit = Release, ""
	return info
}

// NewRegistry returns an empty registry of versions and feature gates. ServerRunOptions requires
// one, and all servers of a process would share the library's.
func NewRegistry() basecompatibility.ComponentGlobalsRegistry {
	r := basecompatibility.NewComponentGlobalsRegistry()
	_ = r.Set() // cannot fail for an empty registry
	return r
}
