package stream

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
)

// Streams are the streams of the pods of all workspaces.
type Streams struct {
	Open Opener
	// Config returns a configuration with which the server asks itself about the rights in a workspace.
	Config func(kcp.ClusterName) (*clientrest.Config, error)
}

// Storage returns the storages of the subresources.
func (s Streams) Storage() map[string]rest.Storage {
	return map[string]rest.Storage{
		"pods/log":         logs{s.Open},
		"pods/exec":        &connector{open: s.Open, config: s.Config, name: "exec", options: func() runtime.Object { return &core.PodExecOptions{} }},
		"pods/attach":      &connector{open: s.Open, config: s.Config, name: "attach", options: func() runtime.Object { return &core.PodAttachOptions{} }},
		"pods/portforward": &connector{open: s.Open, config: s.Config, name: "portforward", options: func() runtime.Object { return &core.PodPortForwardOptions{} }},
	}
}
