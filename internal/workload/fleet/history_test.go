package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/kcptest"
)

// A historian asks for the revisions of the Deployment web as kubectl does.
type historian struct {
	*kcptest.Cluster
	*kubernetes.Clientset
}

// TestRevisions expects that the revisions of a Deployment are there for kubectl, and that they run nowhere.
func TestRevisions(t *testing.T) {
	_, shop := placing(t)
	typed, err := kubernetes.NewForConfig(shop.Config)
	if err != nil {
		t.Fatal(err)
	}
	h := historian{shop, typed}
	h.shows(t, "1")
	t.Run("history and undo", func(t *testing.T) { h.undoes(t) })
	t.Run("they are not placed, others are", func(t *testing.T) { h.placesOthers(t) })
	t.Run("nothing is written while nothing changes", func(t *testing.T) { h.rests(t) })
	t.Run("they outlive an orphaning deletion", func(t *testing.T) { h.orphans(t) })
}

// shows waits until the history has some revisions, and the Deployment says that the last one is its own.
func (h *historian) shows(t *testing.T, revisions ...string) {
	t.Helper()
	viewer, err := polymorphichelpers.HistoryViewerFor(appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind(), h.Clientset)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		text, err := viewer.ViewHistory("default", "web", 0)
		if err != nil {
			return err
		}
		var got []string
		for line := range strings.Lines(text) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] != "REVISION" {
				got = append(got, fields[0])
			}
		}
		d, err := h.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if says := d.Annotations["deployment.kubernetes.io/revision"]; !slices.Equal(got, revisions) || says != revisions[len(revisions)-1] {
			return fmt.Errorf("there are the revisions %v, and the Deployment has %q; want %v", got, says, revisions)
		}
		return nil
	})
}

func (h *historian) sets(t *testing.T) []appsv1.ReplicaSet {
	t.Helper()
	all, err := h.AppsV1().ReplicaSets("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	return all.Items
}

func (h *historian) image(t *testing.T, image string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"kubernetes.io/change-cause":%[1]q}},"spec":{"template":{"spec":{"containers":[{"name":"web","image":%[1]q}]}}}}`, image)
	if _, err := h.AppsV1().Deployments("default").Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (h *historian) undoes(t *testing.T) {
	h.image(t, "nginx:2")
	h.shows(t, "1", "2")
	kind := appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind()
	viewer, err := polymorphichelpers.HistoryViewerFor(kind, h.Clientset)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := viewer.ViewHistory("default", "web", 2); err != nil || !strings.Contains(text, "nginx:2") || !strings.Contains(text, "kubernetes.io/change-cause: nginx:2") {
		t.Errorf("revision 2: %v\n%s", err, text)
	}
	back, err := polymorphichelpers.RollbackerFor(kind, h.Clientset)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		to        int64
		image     string
		revisions []string
	}{{0, "nginx", []string{"2", "3"}}, {2, "nginx:2", []string{"3", "4"}}} {
		d, err := h.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := back.Rollback(d, nil, step.to, util.DryRunNone); err != nil || text != "rolled back" {
			t.Fatalf("undo: %q, %v", text, err)
		}
		h.shows(t, step.revisions...)
		if d, err = h.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{}); err != nil || d.Spec.Template.Spec.Containers[0].Image != step.image {
			t.Errorf("after the undo: %v, %v", d.Spec.Template.Spec.Containers, err)
		}
	}
}

func (h *historian) placesOthers(t *testing.T) {
	h.Apply(`
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: own}
spec:
  selector: {matchLabels: {app: own}}
  template:
    metadata: {labels: {app: own}}
    spec: {containers: [{name: web, image: nginx}]}
`)
	// The Assignment follows the finalizer that keeps it.
	eventually(t, func() error {
		own, err := h.AppsV1().ReplicaSets("default").Get(t.Context(), "own", metav1.GetOptions{})
		if err == nil && !slices.Contains(own.Finalizers, workload.PlacedFinalizer) {
			err = fmt.Errorf("the ReplicaSet of a user is not placed: %v", own.Finalizers)
		}
		if err != nil {
			return err
		}
		all, err := h.Dynamic.Resource(workload.GroupVersion.WithResource("assignments")).Namespace("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(all.Items) != 2 {
			err = fmt.Errorf("%d Assignments, want those of the Deployment and of the ReplicaSet", len(all.Items))
		}
		return err
	})
	for _, s := range h.sets(t) {
		if len(s.Finalizers) > 0 {
			t.Errorf("the revision %s is placed: %v", s.Name, s.Finalizers)
		}
	}
}

// rests expects that a change which concerns no revision writes none.
func (h *historian) rests(t *testing.T) {
	before := h.sets(t)
	if _, err := h.AppsV1().Deployments("default").Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	h.image(t, "nginx:3") // the revision of which comes after what the label causes
	h.shows(t, "3", "4", "5")
	after := h.sets(t)
	for _, old := range before {
		i := slices.IndexFunc(after, func(s appsv1.ReplicaSet) bool { return s.Name == old.Name })
		if i < 0 || after[i].ResourceVersion != old.ResourceVersion && *after[i].Spec.Replicas == *old.Spec.Replicas {
			t.Errorf("%s was written", old.Name)
		}
	}
}

// orphans expects that the present revision takes the place of a Deployment that is deleted without it, as in Kubernetes.
func (h *historian) orphans(t *testing.T) {
	orphan := metav1.DeletePropagationOrphan
	if err := h.AppsV1().Deployments("default").Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		for _, s := range h.sets(t) {
			if len(s.OwnerReferences) > 0 || !slices.Contains(s.Finalizers, workload.PlacedFinalizer) {
				return fmt.Errorf("%s has the owners %v and the finalizers %v", s.Name, s.OwnerReferences, s.Finalizers)
			}
		}
		return nil
	})
}
