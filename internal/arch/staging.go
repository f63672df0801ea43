//go:build staging

// Nothing here is ever built. k8s.io/kubernetes requires its staging modules
// at v0.0.0, a version that exists only beside its own replace lines, so every
// one of them must be required by us at the version that was published. Most
// are needed anyway; nobody imports a package of these, and go mod tidy would
// drop them, after which "go list -m all" and "go get" fail here, or "go mod
// tidy" in every program that embeds us. go mod tidy reads files of every build tag,
// so these imports keep the requirements.
package arch

import (
	_ "k8s.io/cluster-bootstrap/token/api"
	_ "k8s.io/code-generator"
	_ "k8s.io/cri-api"
	_ "k8s.io/cri-streaming"
	_ "k8s.io/csi-translation-lib"
	_ "k8s.io/dynamic-resource-allocation"
	_ "k8s.io/externaljwt"
	_ "k8s.io/mount-utils"
	_ "k8s.io/pod-security-admission/api"
	_ "k8s.io/sample-apiserver/pkg/apis/wardle"
)
