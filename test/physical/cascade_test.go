//go:build unix

package physical

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/test/stock"
)

// cascades deletes workloads in the foreground.
func (s *tenant) cascades(t *testing.T) {
	s.create(t, "slow", 4)
	s.statefulSet(t, "slow")
	pod := template("slow")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := s.BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Spec: batchv1.JobSpec{Template: pod}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.outlivesCopies(t, appsv1.SchemeGroupVersion.WithResource("deployments"), "slow", 2)
	s.outlivesCopies(t, appsv1.SchemeGroupVersion.WithResource("statefulsets"), "slow", 1)
	s.outlivesCopies(t, batchv1.SchemeGroupVersion.WithResource("jobs"), "slow", 1)
}

// endingNamespace deletes a workload with its namespace.
func (s *tenant) endingNamespace(t *testing.T) {
	namespaces := s.CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ending"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppsV1().Deployments("ending").Create(t.Context(), deployment("last", 4), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	of := appsv1.SchemeGroupVersion.WithResource("deployments")
	s.endsAfterCopies(t, of, "ending", "last", 2, func() error {
		return namespaces.Delete(t.Context(), "ending", metav1.DeleteOptions{})
	})
	eventually(t, "the end of the namespace", func() error {
		_, err := namespaces.Get(t.Context(), "ending", metav1.GetOptions{})
		if err == nil {
			return errors.New("it exists")
		}
		return ignoreMissing(err)
	})
}

// A copied is an object of a physical cluster.
type copied struct {
	dynamic.ResourceInterface
	unstructured.Unstructured
}

// copiesOf returns the objects of a name in the physical clusters.
func (w *world) copiesOf(ctx context.Context, t *testing.T, of schema.GroupVersionResource, name string) (all []copied, err error) {
	for _, c := range w.clusters {
		in := dynamicFor(t, c.Config(stock.AdminToken)).Resource(of)
		list, err := in.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			return nil, err
		}
		for _, o := range list.Items {
			all = append(all, copied{in.Namespace(o.GetNamespace()), o})
		}
	}
	return all, nil
}

// outlivesCopies deletes an object like "kubectl delete --cascade=foreground", see endsAfterCopies.
func (s *tenant) outlivesCopies(t *testing.T, of schema.GroupVersionResource, name string, copies int) {
	t.Helper()
	s.endsAfterCopies(t, of, "default", name, copies, func() error {
		return s.dynamic.Resource(of).Namespace("default").Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)})
	})
}

// endsAfterCopies ends an object, and expects that it exists until the last of its copies is gone, whose
// deletion the test holds up.
func (s *tenant) endsAfterCopies(t *testing.T, of schema.GroupVersionResource, namespace, name string, copies int, end func() error) {
	t.Helper()
	var held []copied
	eventually(t, "copies", func() (err error) {
		if held, err = s.copiesOf(t.Context(), t, of, name); err == nil && len(held) != copies {
			err = fmt.Errorf("%d of %d", len(held), copies)
		}
		return err
	})
	patch := func(c copied, finalizers string) {
		t.Helper()
		if _, err := c.Patch(t.Context(), name, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":`+finalizers+`}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range held {
		patch(c, `["example.com/hold"]`)
	}
	objects := s.dynamic.Resource(of).Namespace(namespace)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	for _, c := range held {
		eventually(t, "the garbage collector is done, the copies are being deleted", func() error {
			o, err := objects.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatalf("%s went before its copies: %v", of.Resource, err)
			}
			now, err := s.copiesOf(t.Context(), t, of, name)
			if err == nil && (slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents) || slices.ContainsFunc(now, func(c copied) bool { return c.GetDeletionTimestamp() == nil })) {
				err = fmt.Errorf("%v, %v", o.GetFinalizers(), now)
			}
			return err
		})
		patch(c, `null`)
	}
	eventually(t, "the end of "+of.Resource, func() error {
		_, err := objects.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			return errors.New("it exists")
		}
		return ignoreMissing(err)
	})
	if left, err := s.copiesOf(t.Context(), t, of, name); err != nil || len(left) > 0 {
		t.Errorf("%d copies are left, %v", len(left), err)
	}
}
