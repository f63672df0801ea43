package tenancy

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// Names of what every workspace has.
const (
	// RootCAConfigMap is in every namespace, for clients that run in one. What they
	// verify the server with is under RootCAKey.
	RootCAConfigMap = "kube-root-ca.crt"
	RootCAKey       = "ca.crt"
	// AdminBinding gives ClusterAdmin to whoever made the workspace.
	AdminBinding = "workspace-admin"
	ClusterAdmin = "cluster-admin"

	defaultAccount = "default"
)

func native(group, resource string) store.Resource {
	return store.NativeResource(schema.GroupResource{Group: group, Resource: resource})
}

// A birth makes objects that all came to be at one time.
type birth struct {
	now     metav1.Time
	cluster cluster.Name
	rootCA  string
	// template is what the workspace is made from, nil for one without a type.
	template *Template
}

func (w *Workspaces) birth(c cluster.Name, now metav1.Time) birth {
	return birth{now: metav1.NewTime(now.UTC().Truncate(1e9)), cluster: c, rootCA: w.RootCA}
}

// meta is the metadata of a new object.
func (b birth) meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uuid.NewUUID(), CreationTimestamp: b.now}
}

func (b birth) write(r store.Resource, o runtime.Object) store.Write {
	return store.Write{Resource: r, Cluster: b.cluster, Object: o}
}

// namespace returns the writes that make a namespace with what is in each: a
// service account and the certificates of the server. The namespace is the last, so
// that whoever sees it has seen that it is complete.
func (b birth) namespace(name string) []store.Write {
	ns := &corev1.Namespace{
		ObjectMeta: b.meta("", name),
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
	ns.Labels = map[string]string{corev1.LabelMetadataName: name}
	return []store.Write{
		b.write(native("", "serviceaccounts"), b.account(name)),
		b.write(native("", "configmaps"), b.rootCAMap(name)),
		b.write(native("", "namespaces"), ns),
	}
}

func (b birth) account(namespace string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: b.meta(namespace, defaultAccount)}
}

func (b birth) rootCAMap(namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: b.meta(namespace, RootCAConfigMap), Data: map[string]string{RootCAKey: b.rootCA}}
}

// admin returns the write that makes user the administrator of the cluster.
func (b birth) admin(user string) store.Write {
	return b.write(native(rbacv1.GroupName, "clusterrolebindings"), &rbacv1.ClusterRoleBinding{
		ObjectMeta: b.meta("", AdminBinding),
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: ClusterAdmin},
	})
}
