package server

import (
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	basecompatibility "k8s.io/component-base/compatibility"
)

const (
	// kubernetesVersion is that of the encodings in storage.
	kubernetesVersion = "1.36"
	// Release is what clients are told: the release of the Kubernetes libraries,
	// in a form that they can compare. The libraries themselves know it only when
	// a linker flag tells them.
	Release = "v1.36.3+kcp"
)

// effectiveVersion is that of the server.
type effectiveVersion struct {
	basecompatibility.EffectiveVersion
}

func newEffectiveVersion() effectiveVersion {
	return effectiveVersion{basecompatibility.NewEffectiveVersionFromString(kubernetesVersion, kubernetesVersion, kubernetesVersion)}
}

// Info is what GET /version answers.
func (v effectiveVersion) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	info.GitVersion, info.GitCommit = Release, ""
	return info
}
