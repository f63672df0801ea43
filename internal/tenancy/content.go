package tenancy

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// Names of objects in every workspace.
const (
	// RootCAConfigMap is in every namespace. Under RootCAKey it has the CA certificates
	// with which clients verify the server.
	RootCAConfigMap = "kube-root-ca.crt"
	RootCAKey       = "ca.crt"
	// AdminBinding gives ClusterAdmin to the creator of the workspace.
	AdminBinding = "workspace-admin"
	ClusterAdmin = "cluster-admin"

	defaultAccount = "default"
)

func native(group, resource string) keys.Resource {
	return keys.NativeResource(schema.GroupResource{Group: group, Resource: resource})
}

// A birth builds the initial objects of a cluster, all with one creation time.
type birth struct {
	now     metav1.Time
	cluster cluster.Name
	rootCA  string
	// template is that of the type of the workspace, nil if it has none.
	template *tree.Template
	// host is the shard of the cluster. at is the revision of an existing Workspace.
	host Host
	at   int64
	// bindings are the writes of the default bindings. unbound is set if some cannot be bound
	// yet, and partial if some are missing. made is set once these are known.
	bindings               []store.Write
	made, unbound, partial bool
}

func (w *Workspaces) birth(c cluster.Name, now metav1.Time) birth {
	return birth{now: metav1.NewTime(now.UTC().Truncate(1e9)), cluster: c, rootCA: w.RootCA.Text()}
}

// meta returns the metadata of a new object.
func (b birth) meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uuid.NewUUID(), CreationTimestamp: b.now}
}

func (b birth) write(r keys.Resource, o runtime.Object) store.Write {
	return store.Write{Resource: r, Cluster: b.cluster, Object: o}
}

// namespace returns the writes that create a namespace with the objects that every
// namespace has: a service account and the CA certificates of the server. The namespace is
// the last write, so clients that see it also see its content.
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

// admin returns the write of the binding that makes user an administrator of the cluster.
func (b birth) admin(user string) store.Write {
	return b.write(native(rbacv1.GroupName, "clusterrolebindings"), &rbacv1.ClusterRoleBinding{
		ObjectMeta: b.meta("", AdminBinding),
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: ClusterAdmin},
	})
}
