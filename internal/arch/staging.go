//go:build staging

// This file is never built. k8s.io/kubernetes requires its staging modules at v0.0.0, which exists
// only through its own replace lines. So our go.mod must require each of them at its published
// version. Most are needed anyway. No package imports the following ones, so "go mod tidy" would
// remove them, and then "go list -m all" and "go get" would fail here, and "go mod tidy" in
// embedding programs. As "go mod tidy" reads files with any build tag, these imports keep the
// requirements.
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
