package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LogicalClusterUsage is what a logical cluster stores now, and how it is used. The server returns it as the subresource
// usage of the LogicalCluster, and never stores it.
//
// +kubebuilder:object:generate=false
type LogicalClusterUsage struct {
	metav1.TypeMeta `json:",inline"`

	// path is the path of the workspace, or the name of the logical cluster if it has none.
	Path string `json:"path"`

	// resources are the resources of which the logical cluster has objects, or had requests, by
	// group and name.
	Resources []StoredResource `json:"resources"`

	// total is the sum of resources.
	Total Stored `json:"total"`

	// below is the sum of all workspaces below this one, at any depth.
	Below StoredBelow `json:"below"`
}

// Stored is a number of objects and their size.
//
// +kubebuilder:object:generate=false
type Stored struct {
	// objects is the number of objects.
	Objects int64 `json:"objects"`

	// bytes is the size of the objects as they are stored, without their history.
	Bytes int64 `json:"bytes"`
}

// StoredResource is what a logical cluster stores of one resource.
//
// +kubebuilder:object:generate=false
type StoredResource struct {
	// group is the API group, empty for the core group.
	Group string `json:"group"`

	// resource is the plural name.
	Resource string `json:"resource"`

	Stored `json:",inline"`

	// requests are the requests by verb since the logical cluster was created, usually up to less
	// than a minute ago. Requests that authorization refuses do not count.
	// Requests through views do not count.
	Requests map[string]int64 `json:"requests,omitempty"`

	// watches is the number of open watches at the server that answers.
	Watches int64 `json:"watches,omitempty"`
}

// StoredBelow is what the workspaces below one store.
//
// +kubebuilder:object:generate=false
type StoredBelow struct {
	// workspaces is the number of workspaces.
	Workspaces int64 `json:"workspaces"`

	Stored `json:",inline"`
}
