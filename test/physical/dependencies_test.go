//go:build unix

package physical

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
)

// A workload's ConfigMaps, Secrets and service account follow it.
func TestDependencies(t *testing.T) {
	long(t)
	w := newWorld(t, "east", "west")
	w.compute(t, "compute", "east", "west")
	s := w.shop(t, "shop", "compute")
	t.Run("dependencies follow their users", func(t *testing.T) { s.follows(t) })
	t.Run("a missing dependency is said", func(t *testing.T) { s.saysMissing(t) })
	t.Run("foreign dependencies are not touched", func(t *testing.T) { s.leavesForeignDependencies(t) })
	t.Run("claims", func(t *testing.T) { w.refusesClaims(t) })
	t.Run("workspaces leave nothing", func(t *testing.T) { s.leavesNothing(t) })
	t.Run("a restart writes no dependency", func(t *testing.T) { s.restartsWithDependencies(t) })
	t.Run("the compute workspace leaves nothing", func(t *testing.T) { s.outlivesItsComputeWorkspace(t) })
}

// using creates a Deployment that refers to a ConfigMap, a Secret and a service account.
func (s *tenant) using(t *testing.T, name string, replicas int32, config, secret, account string) {
	t.Helper()
	d := deployment(name, replicas)
	pod := &d.Spec.Template.Spec
	pod.ServiceAccountName = account
	pod.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: config}}}}
	pod.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}}
	if _, err := s.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *tenant) configMap(t *testing.T, name, value string) {
	t.Helper()
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": value}}
	if _, err := s.CoreV1().ConfigMaps("default").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *tenant) secret(t *testing.T, name string, of corev1.SecretType) {
	t.Helper()
	c := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: of, StringData: map[string]string{"key": "hidden"}}
	if of == corev1.SecretTypeServiceAccountToken {
		c.Annotations = map[string]string{corev1.ServiceAccountNameKey: "default"}
	}
	if of == corev1.SecretTypeDockerConfigJson {
		c.StringData = map[string]string{corev1.DockerConfigJsonKey: "{}"}
	}
	if _, err := s.CoreV1().Secrets("default").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// settings returns the values of a ConfigMap with a name at a physical cluster, by namespace.
func (c *cluster) settings(ctx context.Context, name string) (map[string]string, error) {
	list, err := c.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{})
	found := map[string]string{}
	if err == nil {
		for _, m := range list.Items {
			if m.Name == name {
				found[m.Namespace] = m.Data["key"]
			}
		}
	}
	return found, err
}

// has waits until a physical cluster has a ConfigMap once, with a value; an empty value means that it
// has none.
func (c *cluster) has(t *testing.T, name, value string) {
	t.Helper()
	eventually(t, name, func() error {
		found, err := c.settings(t.Context(), name)
		if err != nil {
			return err
		}
		if value == "" && len(found) == 0 {
			return nil
		}
		for _, v := range found {
			if len(found) == 1 && v == value {
				return nil
			}
		}
		return fmt.Errorf("want %q, found %v", value, found)
	})
}

func (s *tenant) follows(t *testing.T) {
	s.configMap(t, "settings", "one")
	s.secret(t, "password", corev1.SecretTypeOpaque)
	s.secret(t, "registry", corev1.SecretTypeDockerConfigJson)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "runner", Annotations: map[string]string{"eks.amazonaws.com/role-arn": "mine"}},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}}
	if _, err := s.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.using(t, "a", 4, "settings", "password", "runner")
	s.using(t, "b", 1, "settings", "password", "runner")
	s.rolledOut(t, "a")
	s.rolledOut(t, "b")
	for _, c := range s.clusters {
		c.has(t, "settings", "one")
		namespace := c.only(t, "a").Namespace
		if got, err := c.CoreV1().Secrets(namespace).Get(t.Context(), "password", metav1.GetOptions{}); err != nil || string(got.Data["key"]) != "hidden" {
			t.Errorf("%v, %v", got.Data, err)
		}
		if got, err := c.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "runner", metav1.GetOptions{}); err != nil || len(got.Annotations) > 0 && got.Annotations["eks.amazonaws.com/role-arn"] != "" {
			t.Errorf("%v, %v", got.Annotations, err)
		}
		eventually(t, "the pull secret of the service account", func() error {
			_, err := c.CoreV1().Secrets(namespace).Get(t.Context(), "registry", metav1.GetOptions{})
			return err
		})
	}
	for object, rule := range map[string]string{"cm/settings": "is wherever a workload that refers to it is", "secret/password": "refers to it", "secrets/registry": "refers to it", "sa/runner": "refers to it"} {
		out := must(t, "workload", "explain", object, "-w", ":root:"+s.name)
		for _, want := range []string{rule, "east", "west", `Deployment "a"`, `Deployment "b"`} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", object, want, out)
			}
		}
	}
	for object, want := range map[string]string{"sa/default": "each physical cluster has its own", "cm/kube-root-ca.crt": "each physical cluster has its own", "ns/default": "only objects in namespaces do"} {
		if out, err := kubectl(t, "workload", "explain", object, "-w", ":root:"+s.name); !strings.Contains(out+fmt.Sprint(err), want) {
			t.Errorf("%s: %v\n%s", object, err, out)
		}
	}
	patch := []byte(`{"data":{"key":"two"}}`)
	if _, err := s.CoreV1().ConfigMaps("default").Patch(t.Context(), "settings", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.clusters {
		c.has(t, "settings", "two")
		namespace := c.only(t, "a").Namespace
		if _, err := c.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "settings", "application/merge-patch+json", []byte(`{"data":{"key":"drift"}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		c.has(t, "settings", "two")
	}
	s.remove(t, "a")
	kept := 0
	for _, c := range s.clusters {
		if all, err := c.copies(t.Context(), "b"); err == nil && len(all) == 1 {
			kept++
			c.has(t, "settings", "two")
		} else {
			c.has(t, "settings", "")
		}
	}
	if kept != 1 {
		t.Errorf("b is at %d clusters", kept)
	}
	s.remove(t, "b")
	for _, c := range s.clusters {
		c.has(t, "settings", "")
	}
	if out := must(t, "workload", "explain", "cm/settings", "-w", ":root:"+s.name); !strings.Contains(out, "is in no physical cluster") || !strings.Contains(out, "no workload that is placed refers to it") {
		t.Error(out)
	}
}

func (s *tenant) saysMissing(t *testing.T) {
	s.secret(t, "token", corev1.SecretTypeServiceAccountToken)
	s.using(t, "lacks", 2, "absent", "token", "")
	eventually(t, "conditions", func() error {
		d, err := s.AppsV1().Deployments("default").Get(t.Context(), "lacks", metav1.GetOptions{})
		if err != nil {
			return err
		}
		text := fmt.Sprint(d.Status.Conditions)
		if !strings.Contains(text, `configmaps "absent" does not exist in the workspace`) || !strings.Contains(text, `secrets "token" has the type kubernetes.io/service-account-token`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	out := must(t, "workload", "get", "deploy/lacks", "-w", ":root:"+s.name)
	if !strings.Contains(out, "MissingDependency") {
		t.Error(out)
	}
	if out := must(t, "workload", "explain", "secret/token", "-w", ":root:"+s.name); !strings.Contains(out, `MissingDependency: secrets "token" has the type`) {
		t.Error(out)
	}
	s.configMap(t, "absent", "here")
	for _, c := range s.clusters {
		c.has(t, "absent", "here")
	}
	eventually(t, "conditions", func() error {
		d, err := s.AppsV1().Deployments("default").Get(t.Context(), "lacks", metav1.GetOptions{})
		if err == nil && strings.Contains(fmt.Sprint(d.Status.Conditions), "absent") {
			err = fmt.Errorf("%v", d.Status.Conditions)
		}
		return err
	})
	if err := s.CoreV1().ConfigMaps("default").Delete(t.Context(), "absent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.clusters {
		c.has(t, "absent", "")
	}
	s.remove(t, "lacks")
}

func (s *tenant) leavesForeignDependencies(t *testing.T) {
	s.create(t, "anchor", 2) // keeps the namespace
	s.rolledOut(t, "anchor")
	east := s.clusters["east"]
	namespace := east.only(t, "anchor").Namespace
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Data: map[string]string{"key": "theirs"}}
	if _, err := east.CoreV1().ConfigMaps(namespace).Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.configMap(t, "theirs", "mine")
	s.using(t, "conflict", 2, "theirs", "password", "")
	eventually(t, "conflict", func() error {
		d, err := s.AppsV1().Deployments("default").Get(t.Context(), "conflict", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(d.Status.Conditions), "was not created by this workspace") {
			err = fmt.Errorf("%v", d.Status.Conditions)
		}
		return err
	})
	s.clusters["west"].has(t, "theirs", "mine")
	s.remove(t, "conflict")
	s.clusters["west"].has(t, "theirs", "")
	east.has(t, "theirs", "theirs")
	if err := east.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "theirs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.remove(t, "anchor")
}

// refusesClaims expects that nothing is read where the owner of the workspace does not accept that.
func (w *world) refusesClaims(t *testing.T) {
	must(t, "ws", "create", ":root:shy")
	must(t, "bind", "compute", ":root:compute", "--reject-all-permission-claims", "-w", ":root:shy")
	s := w.enter(t, "shy")
	s.configMap(t, "mine", "private")
	s.secret(t, "password", corev1.SecretTypeOpaque)
	s.using(t, "shy", 2, "mine", "password", "")
	eventually(t, "conditions", func() error {
		d, err := s.AppsV1().Deployments("default").Get(t.Context(), "shy", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(d.Status.Conditions), "does not accept the permission claim on configmaps") {
			err = fmt.Errorf("%v", d.Status.Conditions)
		}
		return err
	})
	must(t, "claims", "accept", "kubernetes", "-w", ":root:shy")
	for _, c := range s.clusters {
		c.has(t, "mine", "private")
	}
	s.remove(t, "shy")
}

func (s *tenant) restartsWithDependencies(t *testing.T) {
	s.configMap(t, "steady", "same")
	s.using(t, "steady", 2, "steady", "password", "runner")
	s.rolledOut(t, "steady")
	if _, err := s.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "steady"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.at(t, "svc/steady", "east 0/-, west 0/-")
	service := func(c *cluster) string {
		var got *corev1.Service
		eventually(t, "the Service", func() (err error) {
			got, err = c.CoreV1().Services(c.only(t, "steady").Namespace).Get(t.Context(), "steady", metav1.GetOptions{})
			return err
		})
		return got.ResourceVersion
	}
	before := map[string]string{}
	for name, c := range s.clusters {
		c.has(t, "steady", "same")
		got, err := c.CoreV1().ConfigMaps(c.only(t, "steady").Namespace).Get(t.Context(), "steady", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		before[name] = got.ResourceVersion + " " + c.only(t, "steady").ResourceVersion + " " + service(c)
	}
	s.stopServer(t)
	s.startServer(t)
	again := s.enter(t, s.name)
	again.create(t, "late", 2)
	again.rolledOut(t, "late")
	for name, c := range s.clusters {
		got, err := c.CoreV1().ConfigMaps(c.only(t, "steady").Namespace).Get(t.Context(), "steady", metav1.GetOptions{})
		if err != nil || got.ResourceVersion+" "+c.only(t, "steady").ResourceVersion+" "+service(c) != before[name] {
			t.Errorf("the server wrote to %s: %v", name, err)
		}
	}
	*s = *again
}

// leavesNothing expects that nothing remains in the physical clusters of a workspace that is deleted, or
// that does not bind the compute workspace any more, also of what is copied because others refer to it.
func (s *tenant) leavesNothing(t *testing.T) {
	deleted, unbound := s.shop(t, "deleted", "compute"), s.shop(t, "unbound", "compute")
	for _, of := range []*tenant{deleted, unbound} {
		of.configMap(t, "left", "value")
		of.secret(t, "left", corev1.SecretTypeOpaque)
		of.using(t, "left", 2, "left", "left", "")
		of.rolledOut(t, "left")
		if _, err := of.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "left"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		of.at(t, "svc/left", "east 0/-, west 0/-")
	}
	west := s.clusters["west"]
	all, err := west.copies(t.Context(), "left")
	if err != nil || len(all) != 2 {
		t.Fatalf("%d copies, %v", len(all), err)
	}
	s.endAndAwait(t, unbound, all)
}

// outlivesItsComputeWorkspace expects that the copies of a workload go with the compute workspace, with their namespaces.
// Its own workspace keeps the workload.
func (s *tenant) outlivesItsComputeWorkspace(t *testing.T) {
	s.configMap(t, "end", "value")
	s.secret(t, "end", corev1.SecretTypeOpaque)
	s.using(t, "end", 4, "end", "end", "")
	s.rolledOut(t, "end")
	var all []string
	for name, c := range s.clusters {
		all = append(all, name+"/"+c.only(t, "end").Namespace)
	}
	workspaces := schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	root := dynamicFor(t, client.Cluster(s.config, "root"))
	if err := root.Resource(workspaces).Delete(t.Context(), "compute", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the compute workspace", func() error {
		o, err := root.Resource(workspaces).Get(t.Context(), "compute", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("it exists: %v", o.Object["status"])
		}
		return ignoreMissing(err)
	})
	for _, at := range all {
		of, namespace, _ := strings.Cut(at, "/")
		eventually(t, "end of the namespace", func() error {
			n, err := s.clusters[of].CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("namespace %s exists: %v", n.Name, n.Status)
			}
			return ignoreMissing(err)
		})
	}
	d, err := s.AppsV1().Deployments("default").Get(t.Context(), "end", metav1.GetOptions{})
	if err != nil || len(d.Finalizers) > 0 || !strings.Contains(fmt.Sprint(d.Status.Conditions), workload.ComputeDeleted) {
		t.Errorf("the Deployment is %v, %v", d, err)
	}
}
