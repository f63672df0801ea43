//go:build unix

package physical

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubectl/pkg/polymorphichelpers"
)

// Every kind goes where its class says, and its status comes back.
func TestKinds(t *testing.T) {
	long(t)
	w := newWorld(t, "east", "west")
	w.compute(t, "compute", "east", "west")
	s := w.shop(t, "shop", "compute")
	t.Run("stateful sets", func(t *testing.T) { s.statefulSets(t) })
	t.Run("daemon sets", func(t *testing.T) { s.daemonSets(t) })
	t.Run("jobs", func(t *testing.T) { s.jobs(t) })
	t.Run("replica sets", func(t *testing.T) { s.replicaSets(t) })
	t.Run("services and others follow", func(t *testing.T) { s.followers(t) })
	t.Run("policies come first", func(t *testing.T) { s.policiesComeFirst(t) })
	t.Run("volume claims", func(t *testing.T) { s.volumeClaims(t) })
	t.Run("autoscalers", func(t *testing.T) { s.autoscalers(t) })
	t.Run("autoscalers of duplicates", func(t *testing.T) { s.duplicatedAutoscalers(t) })
	t.Run("nothing is watched that is not there", func(t *testing.T) { s.nothingLeft(t) })
}

func template(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:1"}}}}
}

// place of an object: which clusters have a copy of it, by "kubectl kcp workload get".
func (s *tenant) at(t *testing.T, object, want string) {
	t.Helper()
	_, name, _ := strings.Cut(object, "/")
	eventually(t, "place of "+object, func() error {
		out, err := kubectl(t, "workload", "get", object, "-w", ":root:"+s.name)
		if err == nil && !strings.Contains(out, name+": "+want+"\n") {
			err = fmt.Errorf("want %q, got\n%s", want, out)
		}
		return err
	})
}

// done waits until "kubectl rollout status" would end.
func done(t *testing.T, viewer polymorphichelpers.StatusViewer, kind string, get func() (runtime.Object, error)) {
	t.Helper()
	eventually(t, "rollout", func() error {
		o, err := get()
		if err != nil {
			return err
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(kind))
		text, ok, err := viewer.Status(u, 0)
		if err == nil && !ok {
			err = errors.New(text)
		}
		return err
	})
}

func (s *tenant) statefulSet(t *testing.T, name string, claims ...corev1.PersistentVolumeClaim) {
	t.Helper()
	_, err := s.AppsV1().StatefulSets("default").Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(2)), ServiceName: name, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: template(name), VolumeClaimTemplates: claims,
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// setRolledOut waits until a StatefulSet is rolled out, and returns the cluster that has it.
func (s *tenant) setRolledOut(t *testing.T, name string) string {
	t.Helper()
	done(t, &polymorphichelpers.StatefulSetStatusViewer{}, "StatefulSet", func() (runtime.Object, error) {
		return s.AppsV1().StatefulSets("default").Get(t.Context(), name, metav1.GetOptions{})
	})
	return s.holder(t, name)
}

// holder returns the one cluster that has a StatefulSet.
func (s *tenant) holder(t *testing.T, name string) string {
	t.Helper()
	found := ""
	for at, c := range s.clusters {
		list, err := c.AppsV1().StatefulSets("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) > 0 && found != "" {
			t.Fatalf("%s is at two clusters", name)
		}
		if len(list.Items) > 0 {
			found = at
		}
	}
	return found
}

func (s *tenant) statefulSets(t *testing.T) {
	s.statefulSet(t, "db")
	at := s.setRolledOut(t, "db")
	if _, err := s.AppsV1().StatefulSets("default").Patch(t.Context(), "db", "application/merge-patch+json", []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.at(t, "sts/db", at+" 3/3")
	s.setRolledOut(t, "db")
	must(t, "workload", "drain", at, "-w", ":root:compute")
	other := map[string]string{"east": "west", "west": "east"}[at]
	s.at(t, "sts/db", other+" 3/3")
	if now := s.setRolledOut(t, "db"); now != other {
		t.Errorf("it is at %q", now)
	}
	must(t, "workload", "uncordon", at, "-w", ":root:compute")
	s.at(t, "sts/db", other+" 3/3") // it stays
	if err := s.AppsV1().StatefulSets("default").Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "removal", func() error {
		if at := s.holder(t, "db"); at != "" {
			return fmt.Errorf("it is at %s", at)
		}
		return nil
	})
}

func (s *tenant) daemonSets(t *testing.T) {
	_, err := s.AppsV1().DaemonSets("default").Create(t.Context(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}}, Template: template("agent")}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done(t, &polymorphichelpers.DaemonSetStatusViewer{}, "DaemonSet", func() (runtime.Object, error) {
		return s.AppsV1().DaemonSets("default").Get(t.Context(), "agent", metav1.GetOptions{})
	})
	for name, c := range s.clusters {
		list, err := c.AppsV1().DaemonSets("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Errorf("%s: %d, %v", name, len(list.Items), err)
		}
	}
	must(t, "workload", "drain", "east", "-w", ":root:compute")
	s.at(t, "ds/agent", "west 1/-")
	must(t, "workload", "uncordon", "east", "-w", ":root:compute")
	s.at(t, "ds/agent", "east 1/-, west 1/-")
	if err := s.AppsV1().DaemonSets("default").Delete(t.Context(), "agent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *tenant) jobs(t *testing.T) {
	pod := template("once")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := s.BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: pod}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var at *cluster
	var copied batchv1.Job
	eventually(t, "copy", func() error {
		for _, c := range s.clusters {
			list, err := c.BatchV1().Jobs("").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			if len(list.Items) == 1 {
				at, copied = c, list.Items[0]
				return nil
			}
		}
		return errors.New("no cluster has it")
	})
	eventually(t, "one active pod", func() error {
		j, err := s.BatchV1().Jobs("default").Get(t.Context(), "once", metav1.GetOptions{})
		if err == nil && (j.Status.Active != 1 || j.Status.StartTime == nil) {
			err = fmt.Errorf("%+v", j.Status)
		}
		return err
	})
	// The pod runs, and ends.
	var pods *corev1.PodList
	eventually(t, "its pod runs", func() (err error) {
		pods, err = at.CoreV1().Pods(copied.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "job-name=once"})
		if err == nil && (len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning) {
			err = fmt.Errorf("%d pods", len(pods.Items))
		}
		return err
	})
	ended := []byte(`{"status":{"phase":"Succeeded"}}`)
	if _, err := at.CoreV1().Pods(copied.Namespace).Patch(t.Context(), pods.Items[0].Name, "application/merge-patch+json", ended, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "completion", func() error {
		j, err := s.BatchV1().Jobs("default").Get(t.Context(), "once", metav1.GetOptions{})
		if err == nil && (j.Status.Succeeded != 1 || !strings.Contains(fmt.Sprint(j.Status.Conditions), "Complete True")) {
			err = fmt.Errorf("%+v", j.Status)
		}
		return err
	})
	// Somebody deletes the copy: it does not run again.
	if err := at.BatchV1().Jobs(copied.Namespace).Delete(t.Context(), "once", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}, Spec: batchv1.CronJobSpec{Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: pod}}}}
	if _, err := s.BatchV1().CronJobs("default").Create(t.Context(), cron, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "cron job", func() error {
		found := 0
		for _, c := range s.clusters {
			list, err := c.BatchV1().CronJobs("").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			found += len(list.Items)
		}
		if found != 1 {
			return fmt.Errorf("%d copies", found)
		}
		return nil
	})
	if list, err := at.BatchV1().Jobs("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("%d jobs, %v", len(list.Items), err)
	}
	if _, err := s.BatchV1().Jobs("default").Patch(t.Context(), "once", "application/merge-patch+json", []byte(`{"spec":{"ttlSecondsAfterFinished":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of a Job whose time has come", func() error {
		_, err := s.BatchV1().Jobs("default").Get(t.Context(), "once", metav1.GetOptions{})
		if err == nil {
			return errors.New("it exists")
		}
		return ignoreMissing(err)
	})
	if err := s.BatchV1().CronJobs("default").Delete(t.Context(), "nightly", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *tenant) replicaSets(t *testing.T) {
	_, err := s.AppsV1().ReplicaSets("default").Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "rs"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: new(int32(4)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "rs"}}, Template: template("rs")}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.at(t, "rs/rs", "east 2/2, west 2/2")
	eventually(t, "status", func() error {
		r, err := s.AppsV1().ReplicaSets("default").Get(t.Context(), "rs", metav1.GetOptions{})
		if err == nil && (r.Status.ReadyReplicas != 4 || r.Status.ObservedGeneration != r.Generation) {
			err = fmt.Errorf("%+v", r.Status)
		}
		return err
	})
	if err := s.AppsV1().ReplicaSets("default").Delete(t.Context(), "rs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// followers creates what follows a Deployment, and expects it where that is.
func (s *tenant) followers(t *testing.T) {
	labels := map[string]string{"app": "web"}
	_, err := s.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.secret(t, "certificate", corev1.SecretTypeOpaque)
	_, err = s.NetworkingV1().Ingresses("default").Create(t.Context(), &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: networkingv1.IngressSpec{
		TLS:            []networkingv1.IngressTLS{{SecretName: "certificate"}},
		DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.NetworkingV1().NetworkPolicies("default").Create(t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.create(t, "web", 4)
	s.rolledOut(t, "web")
	for _, object := range []string{"svc/web", "ingress/web", "netpol/web", "pdb/web"} {
		s.at(t, object, "east 0/-, west 0/-")
		out := must(t, "workload", "explain", object, "-w", ":root:"+s.name)
		for _, want := range []string{`"web" is wherever a workload of its namespace is`, "east", "west", `Deployment "web"`} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", object, want, out)
			}
		}
	}
	n := 0
	for name, c := range s.clusters {
		namespace := c.only(t, "web").Namespace
		eventually(t, "copies", func() error {
			_, err1 := c.NetworkingV1().Ingresses(namespace).Get(t.Context(), "web", metav1.GetOptions{})
			_, err2 := c.NetworkingV1().NetworkPolicies(namespace).Get(t.Context(), "web", metav1.GetOptions{})
			_, err3 := c.PolicyV1().PodDisruptionBudgets(namespace).Get(t.Context(), "web", metav1.GetOptions{})
			_, err4 := c.CoreV1().Secrets(namespace).Get(t.Context(), "certificate", metav1.GetOptions{})
			return errors.Join(err1, err2, err3, err4)
		})
		got, err := c.CoreV1().Services(namespace).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil || got.Spec.ClusterIP == "" {
			t.Fatalf("%s: %v", name, err)
		}
		n++
		address := fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.%d"}]}}}`, n)
		if _, err := c.CoreV1().Services(namespace).Patch(t.Context(), "web", "application/merge-patch+json", []byte(address), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "addresses", func() error {
		got, err := s.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && (len(got.Status.LoadBalancer.Ingress) != 2 || got.Spec.ClusterIP != "") {
			err = fmt.Errorf("%+v", got.Status)
		}
		return err
	})
	eventually(t, "budget", func() error {
		got, err := s.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && (got.Status.ExpectedPods != 4 || got.Status.CurrentHealthy != 4 || got.Status.ObservedGeneration != got.Generation) {
			err = fmt.Errorf("%+v", got.Status)
		}
		return err
	})
	s.remove(t, "web")
	for _, c := range s.clusters {
		eventually(t, "they leave", func() error {
			list, err := c.CoreV1().Services("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=web"})
			if err == nil && len(list.Items) > 0 {
				err = errors.New("the Service is there")
			}
			return err
		})
	}
	for _, err := range []error{
		s.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}),
		s.NetworkingV1().Ingresses("default").Delete(t.Context(), "web", metav1.DeleteOptions{}),
		s.NetworkingV1().NetworkPolicies("default").Delete(t.Context(), "web", metav1.DeleteOptions{}),
		s.PolicyV1().PodDisruptionBudgets("default").Delete(t.Context(), "web", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// volumeClaims expects that a claim goes where its first user is, and that both stay there.
func (s *tenant) volumeClaims(t *testing.T) {
	spec := corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "stolen",
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}
	if _, err := s.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := deployment("files", 2)
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	if _, err := s.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.rolledOut(t, "files")
	var at string
	eventually(t, "claim", func() error {
		for name, c := range s.clusters {
			list, err := c.CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			if len(list.Items) == 1 {
				if list.Items[0].Spec.VolumeName != "" {
					t.Errorf("it asks for volume %q", list.Items[0].Spec.VolumeName)
				}
				at = name
				return nil
			}
		}
		return errors.New("no cluster has it")
	})
	s.at(t, "deploy/files", at+" 2/2")
	eventually(t, "phase", func() error {
		got, err := s.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "data", metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.ClaimPending {
			err = fmt.Errorf("%+v", got.Status)
		}
		return err
	})
	if _, err := kubectl(t, "workload", "drain", at, "-w", ":root:compute", "--timeout", "3s"); err == nil {
		t.Error("the data were left behind")
	}
	if out := must(t, "workload", "get", "deploy/files", "-w", ":root:"+s.name); !strings.Contains(out, at+" 2/2") {
		t.Error(out)
	}
	must(t, "workload", "uncordon", at, "-w", ":root:compute")
	s.remove(t, "files")
	if err := s.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// nothingLeft expects that nothing remains in the physical clusters.
func (s *tenant) nothingLeft(t *testing.T) {
	for name, c := range s.clusters {
		eventually(t, name+" is empty", func() error {
			list, err := c.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: "internal.workload.kcp.io/cluster"})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d namespaces: %v", len(list.Items), list.Items[0].Status)
			}
			return err
		})
	}
	left, err := s.dynamic.Resource(schema.GroupVersionResource{Group: "workload.kcp.io", Version: "v1alpha1", Resource: "targetstatuses"}).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("%d reports, %v", len(left.Items), err)
	}
}
