package workload

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	agentName      = "kcp-agent"
	bootstrapName  = "kcp-agent-bootstrap"
	bootstrapMount = "/var/run/kcp"
	bootstrapKey   = "kubeconfig"
)

// agentRules are the rights of an agent in the physical cluster: for the kinds that workspaces run
// there, and for their pods.
func agentRules() []rbacv1.PolicyRule {
	write := []string{"get", "list", "watch", "create", "patch", "update", "delete"}
	return []rbacv1.PolicyRule{
		{Verbs: write, APIGroups: []string{""}, Resources: []string{"namespaces", "configmaps", "secrets", "services", "endpoints", "serviceaccounts", "persistentvolumeclaims"}},
		{Verbs: write, APIGroups: []string{"apps"}, Resources: []string{"deployments", "statefulsets", "daemonsets", "replicasets"}},
		{Verbs: write, APIGroups: []string{"batch"}, Resources: []string{"jobs", "cronjobs"}},
		{Verbs: write, APIGroups: []string{"networking.k8s.io"}, Resources: []string{"ingresses", "networkpolicies"}},
		{Verbs: write, APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}},
		{Verbs: write, APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}},
		{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"pods", "pods/log", "events", "nodes"}},
		{Verbs: []string{"delete"}, APIGroups: []string{""}, Resources: []string{"pods"}},
		{Verbs: []string{"get", "create"}, APIGroups: []string{""}, Resources: []string{"pods/exec", "pods/attach", "pods/portforward", "pods/eviction"}},
		{Verbs: []string{"patch", "update"}, APIGroups: []string{""}, Resources: []string{"pods/ephemeralcontainers"}},
		{Verbs: []string{"get", "list"}, APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods"}},
		{Verbs: []string{"get"}, NonResourceURLs: []string{"/version", "/readyz", "/livez"}},
	}
}

// agentManifest returns what a physical cluster needs for an agent, the namespace first.
func agentManifest(target *unstructured.Unstructured, bootstrap []byte, image string) ([]*unstructured.Unstructured, error) {
	space := agentNamespace(target)
	own, wide := metav1.ObjectMeta{Name: agentName, Namespace: space}, metav1.ObjectMeta{Name: space}
	account := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: space, Name: agentName}}
	objects := []runtime.Object{
		&corev1.Namespace{TypeMeta: typeOf("v1", "Namespace"), ObjectMeta: wide},
		&corev1.ServiceAccount{TypeMeta: typeOf("v1", "ServiceAccount"), ObjectMeta: own},
		&rbacv1.ClusterRole{TypeMeta: typeOf("rbac.authorization.k8s.io/v1", "ClusterRole"), ObjectMeta: wide, Rules: agentRules()},
		&rbacv1.ClusterRoleBinding{TypeMeta: typeOf("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"), ObjectMeta: wide,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: space}, Subjects: account},
		&rbacv1.Role{TypeMeta: typeOf("rbac.authorization.k8s.io/v1", "Role"), ObjectMeta: own, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "create", "update"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}}}},
		&rbacv1.RoleBinding{TypeMeta: typeOf("rbac.authorization.k8s.io/v1", "RoleBinding"), ObjectMeta: own,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: agentName}, Subjects: account},
		&corev1.Secret{TypeMeta: typeOf("v1", "Secret"), ObjectMeta: metav1.ObjectMeta{Name: bootstrapName, Namespace: space},
			Data: map[string][]byte{bootstrapKey: bootstrap}},
		agentDeployment(own, image),
	}
	var all []*unstructured.Unstructured
	for _, o := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, err
		}
		delete(content, "status")
		all = append(all, &unstructured.Unstructured{Object: content})
	}
	return all, nil
}

func typeOf(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

func agentDeployment(meta metav1.ObjectMeta, image string) *appsv1.Deployment {
	labels := map[string]string{"app.kubernetes.io/name": agentName}
	meta.Labels = labels
	return &appsv1.Deployment{TypeMeta: typeOf("apps/v1", "Deployment"), ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			ServiceAccountName: agentName,
			SecurityContext:    &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: agentName, Image: image,
				Command: []string{"kcp", "agent"},
				Args:    []string{"--bootstrap-kubeconfig=" + bootstrapMount + "/" + bootstrapKey, "--namespace=" + meta.Namespace, "--replica=$(POD_NAME)"},
				Env:     []corev1.EnvVar{{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("100Mi")}},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				VolumeMounts:    []corev1.VolumeMount{{Name: "bootstrap", MountPath: bootstrapMount, ReadOnly: true}}}},
			Volumes: []corev1.Volume{{Name: "bootstrap", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: bootstrapName}}}},
		}},
	}}
}

// resourceOfObject returns the resource of an object of the manifest.
func resourceOfObject(o *unstructured.Unstructured) schema.GroupVersionResource {
	of := o.GroupVersionKind()
	return of.GroupVersion().WithResource(strings.ToLower(of.Kind) + "s")
}
